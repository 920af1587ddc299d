package main

import (
	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/serve"
)

type serveFlags struct {
	db     dbFlags
	limits limitFlags
	serve.Config
}

func newServe() *cobra.Command {
	f := &serveFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve limits to programs in any language that has a Redis client",
		Long: `Serve limits to programs in any language that has a Redis client: PHP, Python, Ruby, JavaScript.
CL.THROTTLE is the command of redis-cell, and its limit is in the command:
  CL.THROTTLE KEY MAX_BURST COUNT PERIOD [QUANTITY]
The reply is five integers: 1 if denied, the burst, the tokens left, the seconds until a retry (-1 if
allowed), and the seconds until the bucket is full. A quantity of 0 only looks. DEL KEY fills a bucket.
GCRA KEY MAX_BURST COUNT PERIOD [TOKENS N] is the same with times in fractions of a second. MULTI, EXEC
and DISCARD work as in Redis. STINT.HEALTH replies OK, or an error if the server cannot save.

With --limits these commands use the limits of a file, by label. All of a STINT.SPEND are allowed, or
nothing is spent:
  STINT.SPEND LABEL ID COST [LABEL ID COST ...]     STINT.CHECK and STINT.REFUND likewise
  STINT.RESET LABEL ID [LABEL ID ...]               STINT.HOLD LABEL ID SECONDS
  STINT.WAIT LABEL ID COST SECONDS                  1 if the tokens came, 0 after SECONDS (0: no bound)
HUP loads the files again.

Without --listen, the server listens at FILE.resp, which only the user may open. --listen is the path
of a socket, or HOST:PORT; it may be repeated. Without a password, HOST must be a loopback address.
Sockets that systemd passes are used instead.

Other commands, and programs that use package hostlimit, work on the file at the same time. A second
serve of the same socket waits, and takes over when the first ends. TERM and INT answer what was read,
save, and end with status 0.`,
		Example: `  stint serve --db limits.db &
  redis-cli -s limits.db.resp CL.THROTTLE user:1 15 30 60
  stint serve --db limits.db --listen /run/stint/resp.sock --socket-group www-data
  stint serve --db limits.db --listen 127.0.0.1:6380 --password-file secret --durability leased`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := console.UntilInterrupted(cmd.Context())
			defer stop()
			f.File, f.LimitsFile, f.Load, f.Version = f.db.File, f.limits.file, f.load, thisBuild().Version
			return f.Serve(ctx, cmd.ErrOrStderr())
		},
	}
	f.db.register(cmd, dbUsage)
	f.limits.registerFiles(cmd, "a YAML `FILE` of limits, for the commands STINT.*")
	flags := cmd.Flags()
	flags.StringArrayVar(&f.Listen, "listen", nil, "an `ADDRESS`: the path of a socket, or HOST:PORT (default FILE.resp)")
	flags.StringVar(&f.Group, "socket-group", "", "a `GROUP` whose members may open the sockets, too")
	flags.StringVar(&f.PasswordFile, "password-file", "", "a `FILE` whose first line clients must send with AUTH or HELLO")
	flags.StringVar(&f.Durability, "durability", stint.Flushed.String(),
		"`LEVEL` of CL.THROTTLE: memory, flushed, leased or synced")
	flags.StringVar(&f.Metrics, "metrics", "", "serve counts for Prometheus at http://`HOST:PORT`/metrics")
	flags.IntVar(&f.Most, "max-connections", 1024, "refuse connections beyond `N`")
	_ = cmd.MarkFlagFilename("password-file")
	levels := []string{"memory", "flushed", "leased", "synced"}
	_ = cmd.RegisterFlagCompletionFunc("durability", cobra.FixedCompletions(levels, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// load is a serve.LoadFunc.
func (f *serveFlags) load(also stint.NameSpec, number func(label string) (stint.Name, error), again bool) (
	*stint.Limits, map[string]stint.Name, error) {
	if f.limits.file == "" {
		f.limits.name = also.Label // of the only limit
	} else {
		f.limits.also = []stint.NameSpec{also}
	}
	if number == nil {
		number = counter()
	}
	if again {
		f.limits.piped = nil
	}
	return f.limits.load(number)
}
