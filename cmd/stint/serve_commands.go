package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// redisVersion is what clients are told. Some choose their commands by it.
const redisVersion = "7.2.0"

// served are the commands, as COMMAND lists them: those of limits, and those that
// clients send when they connect.
var served []*servedCommand

// servedBy finds a command by its name.
var servedBy = map[string]*servedCommand{}

type servedCommand struct {
	name    string
	arity   int64 // of COMMAND: at least -arity if it is negative
	keys    [3]int64
	summary string
	do      func(c *serveConn, args [][]byte)
}

// takes reports whether the command takes so many words, with its name.
func (d *servedCommand) takes(words int) bool {
	if d.arity < 0 {
		return int64(words) >= -d.arity
	}
	return int64(words) == d.arity
}

func init() { // the methods refer to served
	served = []*servedCommand{
		{"cl.throttle", -5, [3]int64{1, 1, 1}, "Spends tokens of a key's bucket.", nil}, // see collects
		{"gcra", -5, [3]int64{1, 1, 1}, "Spends tokens of a key's bucket.", nil},
		{"del", -2, [3]int64{1, -1, 1}, "Fills the buckets of keys.", (*serveConn).delete},
		{"unlink", -2, [3]int64{1, -1, 1}, "Fills the buckets of keys.", (*serveConn).delete},

		{"stint.spend", -4, [3]int64{}, "Spends tokens of all limits, or of none.", func(c *serveConn, args [][]byte) {
			c.together(args, c.server.limiter.SpendAll, stint.CheckAndSpend)
		}},
		{"stint.check", -4, [3]int64{}, "Says what STINT.SPEND would reply.", func(c *serveConn, args [][]byte) {
			c.together(args, c.server.limiter.SpendAll, stint.CheckOnly)
		}},
		{"stint.refund", -4, [3]int64{}, "Returns what STINT.SPEND spent.", func(c *serveConn, args [][]byte) {
			c.together(args, c.server.limiter.Refund, stint.CheckAndSpend)
		}},
		{"stint.reset", -3, [3]int64{}, "Fills buckets, and ends their holds.", (*serveConn).reset},
		{"stint.hold", 4, [3]int64{}, "Denies every request of an id for some seconds.", (*serveConn).hold},
		{"stint.wait", 5, [3]int64{}, "Waits in the queue of an id for tokens.", (*serveConn).wait},
		{"stint.health", 1, [3]int64{}, "Returns OK, or what keeps the server from saving.", func(c *serveConn, _ [][]byte) {
			c.done(c.server.limiter.Health())
		}},

		{"multi", 1, [3]int64{}, "Begins a transaction.", (*serveConn).multi},
		{"exec", 1, [3]int64{}, "Carries out the commands of a transaction.", (*serveConn).exec},
		{"discard", 1, [3]int64{}, "Drops the commands of a transaction.", (*serveConn).discard},

		{"auth", -2, [3]int64{}, "Sends the password.", (*serveConn).auth},
		{"client", -2, [3]int64{}, "Names the connection.", (*serveConn).client},
		{"command", -1, [3]int64{}, "Lists the commands.", (*serveConn).command},
		{"echo", 2, [3]int64{}, "Returns a string.", func(c *serveConn, args [][]byte) { c.out.Bulk(string(args[0])) }},
		{"hello", -1, [3]int64{}, "Chooses the version of the protocol.", (*serveConn).hello},
		{"info", -1, [3]int64{}, "Returns facts about the server.", (*serveConn).info},
		{"ping", -1, [3]int64{}, "Returns PONG.", (*serveConn).ping},
		{"quit", -1, [3]int64{}, "Closes the connection.", func(c *serveConn, _ [][]byte) {
			c.out.Simple("OK")
			c.quits = true
		}},
		{"select", 2, [3]int64{}, "Selects database 0.", (*serveConn).selects},
		{"time", 1, [3]int64{}, "Returns the server's time.", func(c *serveConn, _ [][]byte) {
			now := c.server.limiter.Now()
			c.out.Array(2)
			c.out.Bulk(strconv.FormatInt(now.Unix(), 10), strconv.Itoa(now.Nanosecond()/1000))
		}},
	}
	for _, command := range served {
		servedBy[command.name] = command
	}
}

func (c *serveConn) do(command [][]byte) {
	var buffer [16]byte
	name := lower(buffer[:0], command[0])
	c.commands++
	if c.known && c.transaction == nil && c.collects(string(name), command) {
		return
	}
	c.decide() // first, because replies keep their order
	found, ok := servedBy[string(name)]
	switch {
	case string(name) == "post" || string(name) == "host:": // as Redis does: the body could have commands
		c.out.Error("ERR this is not an HTTP server")
		c.quits = true
	case !c.known && string(name) != "auth" && string(name) != "hello" && string(name) != "quit":
		c.out.Error("NOAUTH Authentication required.")
	case c.transaction != nil && !slices.Contains(atOnce, string(name)):
		c.queue(string(name), command)
	case !ok:
		c.unknown(string(name), command)
	default:
		c.doing = found.name
		if !found.takes(len(command)) {
			c.wrongCount()
			return
		}
		found.do(c, command[1:])
	}
}

// atOnce are the commands that a transaction does not queue.
var atOnce = []string{"multi", "exec", "discard", "quit"}

// collects keeps a command for decide, and returns false if it is not one of those
// that are decided together.
func (c *serveConn) collects(name string, command [][]byte) bool {
	switch name {
	case "cl.throttle":
		c.collect(c.parseThrottle(command))
	case "gcra":
		c.collect(c.parseGCRA(command))
	default:
		return false
	}
	return true
}

func (c *serveConn) wrongCount() {
	c.out.Error(fmt.Sprintf("ERR wrong number of arguments for '%s' command", c.doing))
}

// lower appends a short name in lower case.
func lower(to, name []byte) []byte {
	for _, b := range name {
		if b >= 'A' && b <= 'Z' {
			b += 'a' - 'A'
		}
		to = append(to, b)
	}
	return to
}

// unknown answers a command that is not served.
func (c *serveConn) unknown(name string, command [][]byte) {
	switch name {
	case "eval", "evalsha", "eval_ro", "evalsha_ro", "script", "fcall", "fcall_ro", "function":
		c.out.Error("ERR unknown command '" + name + "': stint serve runs no scripts, so those of other limiters " +
			"do not work here: use CL.THROTTLE")
		return
	case "cluster":
		c.out.Error("ERR This instance has cluster support disabled")
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "ERR unknown command '%.128s', with args beginning with: ", command[0])
	for _, arg := range command[1:] {
		if b.Len() > 256 {
			break
		}
		fmt.Fprintf(&b, "'%.128s' ", arg)
	}
	c.out.Error(b.String())
}

func (c *serveConn) ping(args [][]byte) {
	switch len(args) {
	case 0:
		c.out.Simple("PONG")
	case 1:
		c.out.Bulk(string(args[0]))
	default:
		c.wrongCount()
	}
}

func (c *serveConn) selects(args [][]byte) {
	if string(args[0]) == "0" {
		c.out.Simple("OK")
	} else {
		c.out.Error("ERR DB index is out of range")
	}
}

// auth is AUTH [default] PASSWORD.
func (c *serveConn) auth(args [][]byte) {
	switch {
	case len(args) > 2:
		c.out.Error("ERR syntax error")
	case len(args) == 1 && c.server.password == nil:
		c.out.Error("ERR AUTH <password> called without any password configured for the default user. " +
			"Are you sure your configuration is correct?")
	case c.enter(args):
		c.out.Simple("OK")
	default:
		c.out.Error(wrongPassword)
	}
}

const wrongPassword = "WRONGPASS invalid username-password pair or user is disabled."

// enter checks [USER] PASSWORD.
func (c *serveConn) enter(args [][]byte) bool {
	if len(args) == 2 && string(args[0]) != "default" {
		return false
	}
	if c.server.password != nil {
		sum := sha256.Sum256(args[len(args)-1])
		if subtle.ConstantTimeCompare(sum[:], c.server.password[:]) == 0 {
			return false
		}
	}
	c.known = true
	return true
}

// hello is HELLO [VERSION [AUTH USER PASSWORD] [SETNAME NAME]].
func (c *serveConn) hello(args [][]byte) {
	version := 2
	if c.out.RESP3 {
		version = 3
	}
	name := c.name
	if len(args) > 0 {
		n, err := strconv.Atoi(string(args[0]))
		if err != nil {
			c.out.Error("ERR Protocol version is not an integer or out of range")
			return
		}
		if n < 2 || n > 3 {
			c.out.Error("NOPROTO unsupported protocol version")
			return
		}
		version = n
		for args = args[1:]; len(args) > 0; {
			switch option := strings.ToLower(string(args[0])); {
			case option == "auth" && len(args) >= 3:
				if !c.enter(args[1:3]) {
					c.out.Error(wrongPassword)
					return
				}
				args = args[3:]
			case option == "setname" && len(args) >= 2:
				name, args = string(args[1]), args[2:]
			default:
				c.out.Error(fmt.Sprintf("ERR Syntax error in HELLO option '%.128s'", args[0]))
				return
			}
		}
	}
	if !c.known {
		c.out.Error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> " +
			"AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version " +
			"at the same time")
		return
	}
	c.out.RESP3, c.name = version == 3, name
	c.out.Map(7)
	c.out.Bulk("server", "redis", "version", redisVersion, "proto")
	c.out.Int(int64(version))
	c.out.Bulk("id")
	c.out.Int(c.id)
	c.out.Bulk("mode", "standalone", "role", "master", "modules")
	c.out.Array(0)
}

// client is CLIENT SETINFO, SETNAME and others that clients send.
func (c *serveConn) client(args [][]byte) {
	switch sub := strings.ToLower(string(args[0])); {
	case sub == "setname" && len(args) == 2:
		c.name = string(args[1])
		c.out.Simple("OK")
	case sub == "setinfo" && len(args) == 3, sub == "tracking" && len(args) >= 2, // there is nothing to track
		sub == "no-evict" && len(args) == 2, sub == "no-touch" && len(args) == 2, sub == "capa" && len(args) >= 2:
		c.out.Simple("OK")
	case sub == "id" && len(args) == 1:
		c.out.Int(c.id)
	case sub == "getname" && len(args) == 1:
		if c.name == "" {
			c.out.Null()
		} else {
			c.out.Bulk(c.name)
		}
	case sub == "info" && len(args) == 1:
		c.out.Bulk(fmt.Sprintf("id=%d addr=%s name=%s db=0", c.id, c.conn.RemoteAddr(), c.name))
	default:
		c.out.Error(fmt.Sprintf("ERR unknown subcommand or wrong number of arguments for '%.128s'. "+
			"Try CLIENT SETNAME.", args[0]))
	}
}

// info is INFO, with all its sections. Some clients wait until loading is 0. The
// counts of decisions and errors are those of all processes that share the file.
func (c *serveConn) info(_ [][]byte) {
	c.server.mu.Lock()
	connected := len(c.server.conns)
	c.server.mu.Unlock()
	port := 0
	if tcp, ok := c.conn.LocalAddr().(*net.TCPAddr); ok {
		port = tcp.Port
	}
	memory := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(memory)
	text := fmt.Sprintf("# Server\r\nredis_version:%s\r\nstint_version:%s\r\nredis_mode:standalone\r\ntcp_port:%d\r\n"+
		"uptime_in_seconds:%d\r\n\r\n# Clients\r\nconnected_clients:%d\r\nmaxclients:%d\r\n"+
		"\r\n# Memory\r\nused_memory:%d\r\n\r\n# Persistence\r\nloading:0\r\n",
		redisVersion, thisBuild().Version, port, int64(time.Since(c.server.started).Seconds()), connected, c.server.most,
		memory[0].Value.Uint64())
	st := c.server.limiter.Stats()
	if st.Err == nil { // another process that owns the file has answered
		var allowed, denied int64
		for _, l := range st.Limits {
			allowed += l.Allowed
			denied += l.Denied
		}
		text += fmt.Sprintf("allowed:%d\r\ndenied:%d\r\nsave_errors:%d\r\nbuckets_in_memory:%d\r\n",
			allowed, denied, st.Flush.Failures+st.Commit.Failures, st.Resident)
	}
	c.out.Bulk(text + fmt.Sprintf("\r\n# Stats\r\ntotal_commands_processed:%d\r\n", c.server.commands.Load()) +
		"\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n")
}

// command is COMMAND, COMMAND COUNT, INFO, DOCS and LIST.
func (c *serveConn) command(args [][]byte) {
	sub, of := "", served // nil for a name that is not served
	if len(args) > 0 {
		sub = strings.ToLower(string(args[0]))
	}
	if len(args) > 1 {
		of = nil
		for _, name := range args[1:] {
			of = append(of, servedBy[strings.ToLower(string(name))])
		}
	}
	switch sub {
	case "", "info":
		c.out.Array(len(of))
		for _, d := range of {
			c.describe(d)
		}
	case "list":
		c.out.Array(len(served))
		for _, d := range served {
			c.out.Bulk(d.name)
		}
	case "count":
		c.out.Int(int64(len(served)))
	case "docs":
		of = slices.DeleteFunc(slices.Clone(of), func(d *servedCommand) bool { return d == nil })
		c.out.Map(len(of))
		for _, d := range of {
			c.out.Bulk(d.name)
			c.out.Map(3)
			c.out.Bulk("summary", d.summary, "since", "1.0.0", "group", "stint")
		}
	default:
		c.out.Error(fmt.Sprintf("ERR unknown subcommand '%.128s'. Try COMMAND HELP.", args[0]))
	}
}

// describe writes a command as COMMAND does.
func (c *serveConn) describe(d *servedCommand) {
	if d == nil {
		c.out.Null()
		return
	}
	c.out.Array(6)
	c.out.Bulk(d.name)
	c.out.Int(d.arity)
	c.out.Array(1)
	if d.keys != [3]int64{} || strings.HasPrefix(d.name, "stint.") {
		c.out.Simple("write")
	} else {
		c.out.Simple("fast")
	}
	for _, n := range d.keys {
		c.out.Int(n)
	}
}
