// Package migrate contains programs before and after a move to stint, for
// docs/migrate.md. A test runs both, and compares what they print. It is a module
// of its own, so that users of stint do not depend on the other libraries.
package migrate
