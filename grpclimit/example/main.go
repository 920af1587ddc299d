// Command example is a gRPC server with a limit. Its only service is that of
// health checks, so that it needs no generated code.
package main

import (
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
)

const CallsPerAddress stint.Name = 1

// check ends the program if something cannot be set up.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	limits, err := stint.NewLimits(stint.Names{
		CallsPerAddress: {Label: "calls", Limit: stint.PerMinute(3)},
	})
	check(err)
	limiter, err := stint.Open("quota.db", limits, nil)
	check(err)
	defer limiter.Close()

	unary, stream := grpclimit.Server(limiter,
		&grpclimit.Options{Exempt: []string{}}, // without this, health checks are exempt
		grpclimit.Rule{Key: grpclimit.ByPeer(CallsPerAddress)},
	)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())

	listener, err := net.Listen("tcp", os.Args[1]) // such as localhost:50051
	check(err)
	log.Println("listening on", listener.Addr())
	check(server.Serve(listener))
}
