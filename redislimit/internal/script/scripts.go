package script

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

var (
	//go:embed time.lua
	timeScript string
	//go:embed spend.lua
	spendScript string
	//go:embed bucket.lua
	bucketScript string
	//go:embed script.lua
	decideScript string
	//go:embed lease.lua
	leaseScript string

	// Decisions is the script that decides on requests, and Leasing the one that
	// grants leases.
	Decisions = newScript(timeScript + spendScript + bucketScript + decideScript)
	Leasing   = newScript(timeScript + bucketScript + leaseScript)
)

// Script is a script that the server knows by the SHA-1 of its text.
type Script struct{ Text, SHA string }

func newScript(text string) Script {
	sum := sha1.Sum([]byte(text))
	return Script{text, hex.EncodeToString(sum[:])}
}
