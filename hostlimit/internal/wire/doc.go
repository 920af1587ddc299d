// Package wire is the protocol between the processes that share a file: the
// guests call methods of a Limiter, and the owner of the file answers.
//
// Both sides send frames over a Unix socket. A frame is the length of what
// follows (4 bytes, big-endian), an [Op] (1 byte), the number of the call
// (4 bytes), and a body of at most [MaxFrame] bytes. Numbers in bodies are
// varints.
//
// A guest begins with OpHello: the magic and the version. The owner sends a
// [Welcome] as OpReply, or an error. The first calls of the guest are of
// OpDeclare, for its Names.
//
// After that the guest sends calls. Each carries a number that no other call
// under way uses, and the owner answers in any order: with OpPart as often as
// it likes, and then with OpReply. An answer is the bodies of these frames put
// together, except that for OpSnapshot they are the copy of the file, part by
// part. OpAbort ends the context of the call with the same number, and has no
// reply of its own. A [Welcome] with the number 0 tells the time of the owner's
// clock: it answers OpPing, and comes without a question when that clock has
// stepped. OpBye of the owner says that it is closing: it carries out no call
// that arrives later, and answers each with [ErrNotDone]. OpBye of a guest says
// that it has waited for too long for an answer, and lives on.
//
// A [Call] holds the arguments and the answer of one call. This package writes
// and reads both, but does not know what a call does.
package wire
