package main

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRoff(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "--wait": `\-\-wait`, ".hidden": `\&.hidden`, "'$x'": `\(aq$x\(aq`, `a\b`: `a\eb`, "^~`": `\(ha\(ti\(ga`,
	} {
		assert.Equal(t, want, roff(in))
	}
	assert.Equal(t, `"a \(dqb\(dq"`, roffQuoted(`a "b"`))
}

func TestBuild(t *testing.T) {
	b := newBuild(&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "2026-01-01T00:00:00Z"},
	}})
	assert.Regexp(t, `^v1\.2\.3 abc modified go1\.`, b.String())
	assert.Equal(t, "2026-01-01T00:00:00Z", b.Time)
	assert.Regexp(t, `^unknown go1\.`, newBuild(nil).String())
}
