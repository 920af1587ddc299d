//go:build !long

package httplimit

// long has tests run at full length.
const long = false

// inFlightRounds is how many requests TestInFlightStorm sends.
const inFlightRounds = 20_000
