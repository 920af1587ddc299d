//go:build long

package httplimit

// long has tests run at full length.
const long = true

// inFlightRounds is how many requests TestInFlightStorm sends.
const inFlightRounds = 1_000_000
