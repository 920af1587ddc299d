package redislimit

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

var (
	//go:embed bucket.lua
	bucketScript string
	//go:embed script.lua
	decideScript string
	//go:embed lease.lua
	leaseScript string

	decisions = newScript(bucketScript + decideScript)
	leasing   = newScript(bucketScript + leaseScript)
)

// script is a script that the server knows by the SHA-1 of its text.
type script struct{ text, sha string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(sum[:])}
}
