//go:build long

package httplimit

// inFlightRounds is how many requests TestInFlightStorm sends.
const inFlightRounds = 1_000_000
