// Package decidertest is the conformance suite of [stint.Decider]. Every
// Decider runs the same cases, at every durability level: *stint.Limiter,
// package hostlimit as owner and as guest, package redislimit, and redislimit
// while its server is away.
//
// A Decider joins with one test, which describes it as a [Subject]:
//
//	func TestDecider(t *testing.T) { decidertest.Run(t, &decidertest.Subject{...}) }
//
// Subject.Lacks names what the Decider does not support by design. The suite
// then requires the error that says so.
//
// A new method of Decider needs a case: [Run] fails if none calls it. A new
// exported error needs one, too.
package decidertest
