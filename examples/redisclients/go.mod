module github.com/stint-go/stint/examples/redisclients

go 1.26.0

require (
	github.com/redis/go-redis/v9 v9.20.1
	github.com/stint-go/stint v0.0.0
	github.com/stint-go/stint/redislimit v0.0.0
	github.com/valkey-io/valkey-go v1.0.79
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	go.etcd.io/bbolt v1.5.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace (
	github.com/stint-go/stint => ../..
	github.com/stint-go/stint/redislimit => ../../redislimit
)
