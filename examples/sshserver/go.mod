module github.com/stint-go/stint/examples/sshserver

go 1.26.0

// An old server: stint must not ask it for newer versions of these.
require (
	github.com/stint-go/stint v0.0.0
	github.com/stretchr/testify v1.11.1
	golang.org/x/crypto v0.8.0
	golang.org/x/net v0.9.0 // the version that x/crypto v0.8.0 requires
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/dunglas/httpsfv v1.1.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	go.etcd.io/bbolt v1.5.0 // indirect
	golang.org/x/sys v0.45.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/stint-go/stint => ../..
