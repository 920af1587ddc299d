module github.com/stint-go/stint/cmd/stint/clients

go 1.26.0

require (
	github.com/redis/go-redis/v9 v9.20.1
	github.com/redis/rueidis v1.0.79
	github.com/stretchr/testify v1.11.1
	github.com/valkey-io/valkey-go v1.0.79
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
