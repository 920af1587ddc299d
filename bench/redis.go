package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/stint-go/stint/bench/turns"
)

var (
	redisAlways = Contestant{"Redis always", true, "redis_rate (GCRA in a script), unix socket, appendfsync always",
		openRedis("always")}
	redisEverysec = Contestant{"Redis everysec", true,
		"redis_rate (GCRA in a script), unix socket, appendfsync everysec", openRedis("everysec")}
)

type redisDecider struct {
	server  *exec.Cmd
	client  *redis.Client
	limiter *redis_rate.Limiter
	limit   redis_rate.Limit
}

func openRedis(fsync string) func(Config) (Decider, error) {
	return func(cfg Config) (Decider, error) {
		path, err := exec.LookPath("redis-server")
		if err != nil {
			return nil, fmt.Errorf("%w: no redis-server; on Debian: apt-get install redis-server", errSkip)
		}
		socket := filepath.Join(cfg.Dir, "redis.sock")
		d := &redisDecider{
			server: exec.Command(path, "--port", "0", "--unixsocket", socket, "--dir", cfg.Dir, "--save", "",
				"--appendonly", "yes", "--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0"),
			limit: redis_rate.Limit{Rate: 1, Burst: int(cfg.Burst), Period: cfg.Interval},
		}
		d.server.SysProcAttr = turns.DieWithParent()
		if err := d.server.Start(); err != nil {
			return nil, err
		}
		for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(socket); err == nil {
				break
			} else if time.Since(begun) > 10*time.Second {
				return nil, fmt.Errorf("redis-server does not start: %w", err)
			}
		}
		d.client = redis.NewClient(&redis.Options{Network: "unix", Addr: socket, PoolSize: max(cfg.Callers, 10),
			ReadTimeout: time.Minute, WriteTimeout: time.Minute, PoolTimeout: time.Minute})
		if err := d.client.Ping(context.Background()).Err(); err != nil {
			return nil, err
		}
		d.limiter = redis_rate.NewLimiter(d.client)
		return d, nil
	}
}

// Fill sets the keys as redis_rate would, many in one message.
func (d *redisDecider) Fill(w Workload) error {
	const epoch = 1483228800 // redis_rate's
	tat := fmt.Sprintf("%.6f", time.Since(time.Unix(epoch, 0)).Seconds()+d.limit.Period.Seconds())
	ctx := context.Background()
	for i := 0; i < w.IDs; {
		pipe := d.client.Pipeline()
		for range min(10_000, w.IDs-i) {
			pipe.Set(ctx, "rate:"+id(uint32(i)), tat, 24*time.Hour)
			i++
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
	if n, err := d.client.DBSize(ctx).Result(); err != nil || n != int64(w.IDs) {
		return fmt.Errorf("redis has %d keys of %d: %v", n, w.IDs, err)
	}
	return nil
}

func (d *redisDecider) Allow(id string) bool {
	r, err := d.limiter.Allow(context.Background(), id, d.limit)
	must(err)
	return r.Allowed == 1
}

func (d *redisDecider) Close() error {
	return errors.Join(d.client.Close(), d.server.Process.Signal(syscall.SIGTERM), d.server.Wait())
}

// redisVersion returns the version that redis-server prints.
func redisVersion() string {
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return "none"
	}
	var version string
	fmt.Sscanf(string(out), "Redis server v=%s", &version)
	return version
}
