//go:build long

package netlimit

// storm is how many connections TestListenerStorm opens.
const storm = 100_000

// httpStorm is how many connections TestListenerHTTP opens.
const httpStorm = 100_000
