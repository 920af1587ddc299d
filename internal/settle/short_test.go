//go:build !long

package settle_test

const kills = 3 // at each level
