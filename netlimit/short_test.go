//go:build !long

package netlimit

// storm is how many connections TestListenerStorm opens.
const storm = 20_000

// httpStorm is how many connections TestListenerHTTP opens.
const httpStorm = 5_000
