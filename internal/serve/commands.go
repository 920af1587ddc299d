package serve

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"runtime"
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

var servedBy = map[string]*servedCommand{}

type servedCommand struct {
	name    string
	arity   int64 // of COMMAND: at least -arity if it is negative
	keys    [3]int64
	summary string
	parse   func(c *serveConn, command [][]byte) (t throttle, wrong string) // of commands that are decided together
	do      func(c *serveConn, args [][]byte) error                         // of the others: it replies, or fails
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
		{"cl.throttle", -5, [3]int64{1, 1, 1}, "Spends tokens of a key's bucket.", (*serveConn).parseThrottle, nil},
		{"gcra", -5, [3]int64{1, 1, 1}, "Spends tokens of a key's bucket.", (*serveConn).parseGCRA, nil},
		{"del", -2, [3]int64{1, -1, 1}, "Fills the buckets of keys.", nil, (*serveConn).delete},
		{"unlink", -2, [3]int64{1, -1, 1}, "Fills the buckets of keys.", nil, (*serveConn).delete},

		{"stint.spend", -4, [3]int64{}, "Spends tokens of all limits, or of none.", nil, func(c *serveConn, args [][]byte) error {
			return c.together(args, c.server.limiter.SpendAll, stint.CheckAndSpend)
		}},
		{"stint.check", -4, [3]int64{}, "Says what STINT.SPEND would reply.", nil, func(c *serveConn, args [][]byte) error {
			return c.together(args, c.server.limiter.SpendAll, stint.CheckOnly)
		}},
		{"stint.refund", -4, [3]int64{}, "Returns what STINT.SPEND spent.", nil, func(c *serveConn, args [][]byte) error {
			return c.together(args, c.server.limiter.Refund, stint.CheckAndSpend)
		}},
		{"stint.reset", -3, [3]int64{}, "Fills buckets, and ends their holds.", nil, (*serveConn).reset},
		{"stint.hold", 4, [3]int64{}, "Denies every request of an id for some seconds.", nil, (*serveConn).hold},
		{"stint.wait", 5, [3]int64{}, "Waits in the queue of an id for tokens.", nil, (*serveConn).wait},
		{"stint.health", 1, [3]int64{}, "Returns OK, or what keeps the server from saving.", nil, func(c *serveConn, _ [][]byte) error {
			return c.done(c.server.limiter.Health())
		}},

		{"multi", 1, [3]int64{}, "Begins a transaction.", nil, (*serveConn).multi},
		{"exec", 1, [3]int64{}, "Carries out the commands of a transaction.", nil, (*serveConn).exec},
		{"discard", 1, [3]int64{}, "Drops the commands of a transaction.", nil, (*serveConn).discard},

		{"auth", -2, [3]int64{}, "Sends the password.", nil, (*serveConn).auth},
		{"client", -2, [3]int64{}, "Names the connection.", nil, (*serveConn).client},
		{"command", -1, [3]int64{}, "Lists the commands.", nil, (*serveConn).command},
		{"echo", 2, [3]int64{}, "Returns a string.", nil, func(c *serveConn, args [][]byte) error {
			c.out.Bulk(string(args[0]))
			return nil
		}},
		{"hello", -1, [3]int64{}, "Chooses the version of the protocol.", nil, (*serveConn).hello},
		{"info", -1, [3]int64{}, "Returns facts about the server.", nil, (*serveConn).info},
		{"ping", -1, [3]int64{}, "Returns PONG.", nil, (*serveConn).ping},
		{"quit", -1, [3]int64{}, "Closes the connection.", nil, func(c *serveConn, _ [][]byte) error {
			c.quits = true
			return c.done(nil)
		}},
		{"config", -2, [3]int64{}, "Lists no parameter.", nil, (*serveConn).config},
		{"reset", 1, [3]int64{}, "Makes the connection a new one.", nil, (*serveConn).renew},
		{"role", 1, [3]int64{}, "Returns master.", nil, func(c *serveConn, _ [][]byte) error {
			c.out.Array(3)
			c.out.Bulk("master")
			c.out.Int(0) // the offset of replication
			c.out.Array(0)
			return nil
		}},
		{"select", 2, [3]int64{}, "Selects database 0.", nil, (*serveConn).selects},
		{"time", 1, [3]int64{}, "Returns the server's time.", nil, func(c *serveConn, _ [][]byte) error {
			now := c.server.limiter.Now()
			c.out.Array(2)
			c.out.Bulk(strconv.FormatInt(now.Unix(), 10), strconv.Itoa(now.Nanosecond()/1000))
			return nil
		}},
	}
	for _, command := range served {
		servedBy[command.name] = command
	}
}

func (c *serveConn) do(command [][]byte) {
	var buffer [16]byte
	name := lower(buffer[:0], command[0])
	found := servedBy[string(name)] // nil if it is not served
	c.commands++
	if found != nil && found.parse != nil && c.known && c.transaction == nil {
		c.collect(found.parse(c, command))
		return
	}
	c.decide() // first, because replies keep their order
	if err := c.reply(found, string(name), command); err != nil {
		c.failed(err, string(name))
	}
}

func (c *serveConn) reply(found *servedCommand, name string, command [][]byte) error {
	switch {
	case name == "post" || name == "host:": // as Redis does: the body could have commands
		c.quits = true
		return replyError("ERR this is not an HTTP server")
	case !c.known && !slices.Contains([]string{"auth", "hello", "quit", "reset"}, name):
		return replyError("NOAUTH Authentication required.")
	case c.transaction != nil && !slices.Contains(atOnce, name):
		return c.queue(found, command)
	case found == nil:
		return unknown(name, command)
	case !found.takes(len(command)):
		return errWrongCount
	}
	return found.do(c, command[1:])
}

// atOnce are the commands that a transaction does not queue.
var atOnce = []string{"multi", "exec", "discard", "quit", "reset"}

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

// unknown returns the error of a command that is not served.
func unknown(name string, command [][]byte) error {
	switch name {
	case "eval", "evalsha", "eval_ro", "evalsha_ro", "script", "fcall", "fcall_ro", "function":
		return replyError("ERR unknown command '" + name + "': stint serve runs no scripts, so those of other limiters " +
			"do not work here: use CL.THROTTLE")
	case "cluster":
		return replyError("ERR This instance has cluster support disabled")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "ERR unknown command '%.128s', with args beginning with: ", command[0])
	for _, arg := range command[1:] {
		if b.Len() > 256 {
			break
		}
		fmt.Fprintf(&b, "'%.128s' ", arg)
	}
	return replyError(b.String())
}

func (c *serveConn) ping(args [][]byte) error {
	switch len(args) {
	case 0:
		c.out.Simple("PONG")
	case 1:
		c.out.Bulk(string(args[0]))
	default:
		return errWrongCount
	}
	return nil
}

func (c *serveConn) selects(args [][]byte) error {
	if string(args[0]) != "0" {
		return replyError("ERR DB index is out of range: there is only database 0, so leave the number out of the URL")
	}
	return c.done(nil)
}

// renew is RESET, which pools of connections send: the connection forgets its
// transaction, its name, its version of the protocol and its password.
func (c *serveConn) renew(_ [][]byte) error {
	c.transaction, c.name, c.out.RESP3, c.known = nil, "", false, c.server.password == nil
	c.out.Simple("RESET")
	return nil
}

// config is CONFIG GET, with which some clients look for limits of the server.
func (c *serveConn) config(args [][]byte) error {
	if !strings.EqualFold(string(args[0]), "get") || len(args) < 2 {
		return replyError("ERR only CONFIG GET is served, and it lists no parameter")
	}
	c.out.Map(0)
	return nil
}

// auth is AUTH [default] PASSWORD.
func (c *serveConn) auth(args [][]byte) error {
	switch {
	case len(args) > 2:
		return replyError("ERR syntax error")
	case len(args) == 1 && c.server.password == nil:
		return replyError("ERR AUTH <password> called without any password configured for the default user. " +
			"Are you sure your configuration is correct?")
	}
	return c.done(c.enter(args))
}

// enter checks [USER] PASSWORD.
func (c *serveConn) enter(args [][]byte) error {
	sum := sha256.Sum256(args[len(args)-1])
	if len(args) == 2 && string(args[0]) != "default" ||
		c.server.password != nil && subtle.ConstantTimeCompare(sum[:], c.server.password[:]) == 0 {
		return replyError("WRONGPASS invalid username-password pair or user is disabled.")
	}
	c.known = true
	return nil
}

// hello is HELLO [VERSION [AUTH USER PASSWORD] [SETNAME NAME]].
func (c *serveConn) hello(args [][]byte) error {
	version := 2
	if c.out.RESP3 {
		version = 3
	}
	name := c.name
	if len(args) > 0 {
		n, err := strconv.Atoi(string(args[0]))
		if err != nil {
			return replyError("ERR Protocol version is not an integer or out of range")
		}
		if n < 2 || n > 3 {
			return replyError("NOPROTO unsupported protocol version")
		}
		version = n
		for args = args[1:]; len(args) > 0; {
			switch option := strings.ToLower(string(args[0])); {
			case option == "auth" && len(args) >= 3:
				if err := c.enter(args[1:3]); err != nil {
					return err
				}
				args = args[3:]
			case option == "setname" && len(args) >= 2:
				name, args = string(args[1]), args[2:]
			default:
				return replyError(fmt.Sprintf("ERR Syntax error in HELLO option '%.128s'", args[0]))
			}
		}
	}
	if !c.known {
		return replyError("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> " +
			"AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version " +
			"at the same time")
	}
	c.out.RESP3, c.name = version == 3, name
	c.out.Map(7)
	c.out.Bulk("server", "redis", "version", redisVersion, "proto")
	c.out.Int(int64(version))
	c.out.Bulk("id")
	c.out.Int(c.id)
	c.out.Bulk("mode", "standalone", "role", "master", "modules")
	c.out.Array(0)
	return nil
}

// client is CLIENT SETINFO, SETNAME and others that clients send.
func (c *serveConn) client(args [][]byte) error {
	switch sub := strings.ToLower(string(args[0])); {
	case sub == "setname" && len(args) == 2:
		c.name = string(args[1])
		return c.done(nil)
	case sub == "setinfo" && len(args) == 3, sub == "tracking" && len(args) >= 2, // there is nothing to track
		sub == "no-evict" && len(args) == 2, sub == "no-touch" && len(args) == 2, sub == "capa" && len(args) >= 2:
		return c.done(nil)
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
		return replyError(fmt.Sprintf("ERR unknown subcommand or wrong number of arguments for '%.128s'. "+
			"Try CLIENT SETNAME.", args[0]))
	}
	return nil
}

// info is INFO, with all its sections. Some clients wait until loading is 0. The
// counts are those of all processes that share the file. Decisions are those of the
// buckets, as in stint_decisions_total, so a check is none.
func (c *serveConn) info(_ [][]byte) error {
	port := 0
	if tcp, ok := c.conn.LocalAddr().(*net.TCPAddr); ok {
		port = tcp.Port
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	text := fmt.Sprintf("# Server\r\nredis_version:%s\r\nstint_version:%s\r\nredis_mode:standalone\r\ntcp_port:%d\r\n"+
		"uptime_in_seconds:%d\r\n\r\n# Clients\r\nconnected_clients:%d\r\nmaxclients:%d\r\n"+
		"\r\n# Memory\r\nused_memory:%d\r\n\r\n# Persistence\r\nloading:0\r\n",
		redisVersion, c.server.version, port, int64(time.Since(c.server.started).Seconds()), c.server.connected.Load(), c.server.most,
		memory.HeapAlloc)
	st := c.server.limiter.Stats()
	if st.Err == nil { // another process that owns the file has answered
		var allowed, denied int64
		for _, l := range st.Limits {
			allowed += l.Allowed
			denied += l.Denied
		}
		text += fmt.Sprintf("decisions_allowed:%d\r\ndecisions_denied:%d\r\nsave_errors:%d\r\nbuckets_resident:%d\r\n",
			allowed, denied, st.Flush.Failures+st.Commit.Failures, st.Resident)
	}
	c.out.Bulk(text + fmt.Sprintf("\r\n# Stats\r\ntotal_commands_processed:%d\r\n", c.server.commands.Load()) +
		"\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n")
	return nil
}

// command is COMMAND, COMMAND COUNT, INFO, DOCS and LIST.
func (c *serveConn) command(args [][]byte) error {
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
		return replyError(fmt.Sprintf("ERR unknown subcommand '%.128s'. Try COMMAND HELP.", args[0]))
	}
	return nil
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
