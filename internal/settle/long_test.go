//go:build long

package settle_test

const kills = 200 // at each level
