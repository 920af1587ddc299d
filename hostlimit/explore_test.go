package hostlimit_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// TestTakeover explores a model of the takeover: all interleavings of the steps of
// three processes that share a file, of which two may be killed, while the file or the
// socket is removed, or another file takes the place of the file. An owner may close.
// A process that is stopped is one whose next step comes late, so stops need no steps
// of their own.
//
// A step is what a process does to the folder at one instant: a system call, or
// several of which only one matters to others. The line that it stands for has its
// name in a comment, most of them in takeover.go, server.go and socket.go: who changes
// one of them changes the step, too. TestSteps compares the names.
//
// The laws:
//
//   - Two owners never decide at once, unless the file of one was replaced.
//   - The file that an owner opens has each decision that was acknowledged as synced.
//     If a file was removed, and its owner killed before it put the file back,
//     nothing can be done. One decision is enough to see that: a later one could as
//     well have been the first.
//   - A process that starts to look for an owner after the file was replaced does not
//     become a guest of the old file's owner.
//   - From each state there is a way to an owner whose guests are all others.
//
// Without a part of the takeover, one of the laws is broken.
func TestTakeover(t *testing.T) {
	if testlength.Race {
		t.Skip("it has one goroutine, and millions of steps")
	}
	for _, c := range []struct {
		name    string
		without without
		broken  []string
	}{
		{"as it is", without{}, nil},
		{"no lock", without{lock: true}, []string{lost, twoOwners}},
		{"no second look", without{secondLook: true}, []string{lost, twoOwners}},
		{"no check of the open file", without{checkFile: true}, []string{lost, twoOwners}},
		{"no look at the file before a welcome", without{checkHello: true}, []string{oldFile}},
		{"no file is put back by Close", without{putBack: true}, []string{lost}},
		{"Close stops listening before it closes the file", without{listening: true}, []string{lost}},
		{"Close removes the socket without the lock", without{socketLock: true}, []string{lost, twoOwners}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.broken == nil {
				x := explore(c.without, "")
				require.Empty(t, x.broken, x.history())
				t.Log(x)
			}
			for _, law := range c.broken {
				x := explore(c.without, law)
				require.Equal(t, law, x.broken)
				t.Log(x, x.history())
			}
		})
	}
}

// TestSteps compares the steps of the model with those that the code names.
func TestSteps(t *testing.T) {
	named := make(map[string]bool)
	for _, file := range []string{"takeover.go", "server.go", "socket.go", "limiter.go", "owner.go"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)(?:// |: |; )steps? ([a-z ,]+)$`).FindAllStringSubmatch(string(text), -1) {
			for name := range strings.SplitSeq(found[1], ", ") {
				named[name] = true
			}
		}
	}
	all := append([]string{
		"lost", "close", "replaced", "save", "acknowledge", "copy", "link copy", "listen again",
	}, stepNames[1:]...)
	require.ElementsMatch(t, all, slices.Collect(maps.Keys(named)))
}

// without says which parts of the takeover are left out.
type without struct {
	lock, secondLook, checkFile, checkHello, putBack, listening, socketLock bool
}

// The broken laws.
const (
	twoOwners = "two owners"
	lost      = "a decision is lost"
	oldFile   = "a guest of the owner of an old file"
	noOwner   = "no owner"
)

// The steps. A process is at the step that it takes next.
const (
	gone uint8 = iota // killed, or closed
	look
	hello
	welcome
	guest
	openLock
	lock
	checkLock
	open
	link
	openFile
	lockFile
	checkFile
	clearSocket
	ask
	removeStale
	bind
	listen
	stat
	giveUpSocket
	removeLock
	unlock
	owner
	shut
	lookForFile
	linkBack
	closeFile
	closeLock // openLock, lock and checkLock, of an owner that closes
	closeLocked
	closeCheck
	checkSocket
	removeSocket
	closeSocket
	freeLock // removeLock and unlock, after an error or a close
	freedLock
)

var stepNames = [...]string{
	"gone", "look", "hello", "welcome", "guest", "open lock", "lock", "check lock", "open", "link", "open file",
	"lock file", "check file", "clear", "ask", "remove stale", "bind", "listen", "stat", "give up socket",
	"remove lock", "unlock", "owner", "shut", "look for the file", "link back", "close file",
	"open lock to close", "lock to close", "check lock to close", "check socket", "remove socket", "close socket",
	"free lock", "freed lock",
}

// process is what one process has. Ids of files, sockets and locks are those of
// inodes: 0 is none.
type process struct {
	at       uint8
	file     uint8 // open
	copy     uint8 // of a removed file, locked, under another name
	sock     uint8 // listening
	newSock  uint8 // of listenAgain
	sockID   uint8 // that it takes for its own
	lock     uint8 // open
	peer     uint8 // socket of the process that it asks, or whose guest it is
	again    uint8 // step of listenAgain, or 0
	hasFile  bool  // locked
	hasLock  bool
	opened   bool // it has read the file
	serving  bool
	closing  bool
	stale    bool // no process listened at the last look
	second   bool // this look is the second one
	since    bool // the file was not replaced since this look began
	saved    bool // a decision is in the file and not acknowledged
	listened bool // the socket is not only bound
	leaves   bool // it looks for an owner once it has closed
}

type inode struct{ used, decision, replaced bool }

const most = 10 // files

// state is the folder and the processes.
type state struct {
	procs   [3]process
	files   [most]inode
	path    uint8 // file at the path
	socket  uint8 // socket at the path
	lock    uint8 // lock at the path
	acked   bool
	kills   uint8
	changes uint8
}

type explorer struct {
	without without
	index   map[state]int32
	states  []state
	from    []int32
	how     []string
	by      []int8
	next    []int32 // successors
	first   []int   // of next, by state
	want    string  // the law to break, or "" for any
	broken  string
	at      int32 // the state whose next step broke the law
	begun   time.Time
}

func (x *explorer) String() string {
	return fmt.Sprintf("%d states, %d steps, %v", len(x.states), len(x.next), time.Since(x.begun).Round(time.Millisecond))
}

// explore visits all states, until it finds one that breaks a law: the one that is
// given, or any.
func explore(without without, law string) *explorer {
	x := &explorer{without: without, want: law, index: make(map[state]int32), begun: time.Now()}
	begin := state{kills: 2, changes: 1}
	for i := range begin.procs {
		begin.procs[i].at = look
	}
	x.add(begin, -1, 0, "begin")
	for i := 0; i < len(x.states) && x.broken == ""; i++ {
		x.at = int32(i)
		x.first = append(x.first, len(x.next))
		x.visit(int32(i))
	}
	if x.broken == "" {
		x.first = append(x.first, len(x.next))
		x.checkEnd()
	}
	return x
}

func (x *explorer) breaks(law string) {
	if x.broken == "" && (x.want == "" || x.want == law) {
		x.broken = law
	}
}

func (x *explorer) add(s state, from int32, by int, how string) {
	s = s.canonical()
	i, ok := x.index[s]
	if !ok {
		i = int32(len(x.states))
		x.index[s] = i
		x.states = append(x.states, s)
		x.from, x.by, x.how = append(x.from, from), append(x.by, int8(by)), append(x.how, how)
	}
	if from >= 0 {
		x.next = append(x.next, i)
	}
}

// history returns the steps that led to the broken state.
func (x *explorer) history() string {
	var all []string
	for i := x.at; i >= 0; i = x.from[i] {
		s := x.states[i]
		all = append(all, fmt.Sprintf("%2d %-25s -> %s", x.by[i], x.how[i], s.String()))
	}
	slices.Reverse(all)
	return x.broken + "\n" + strings.Join(all, "\n")
}

func (s *state) String() string {
	text := fmt.Sprintf("path %d sock %d lock %d acked %v", s.path, s.socket, s.lock, s.acked)
	for _, p := range s.procs {
		text += fmt.Sprintf(" | %s f%d s%d l%d p%d", stepNames[p.at], p.file, p.sock, p.lock, p.peer)
	}
	return text
}

// canonical returns the least of the states that are the same except for the names
// of processes and inodes.
func (s state) canonical() state {
	var best state
	for i, perm := range [...][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		c := s
		for j, k := range perm {
			c.procs[j] = s.procs[k]
		}
		c.rename()
		if i == 0 || c.less(&best) {
			best = c
		}
	}
	return best
}

func (s *state) less(o *state) bool {
	for i := range s.procs {
		if c := s.procs[i].compare(&o.procs[i]); c != 0 {
			return c < 0
		}
	}
	return false // the rest follows from them, or is the same in all
}

func (p *process) compare(o *process) int {
	for _, f := range [...][2]uint8{
		{p.at, o.at}, {p.file, o.file}, {p.copy, o.copy}, {p.sock, o.sock}, {p.newSock, o.newSock}, {p.sockID, o.sockID},
		{p.lock, o.lock}, {p.peer, o.peer}, {p.again, o.again}, {p.flags(), o.flags()},
	} {
		if f[0] != f[1] {
			return int(f[0]) - int(f[1])
		}
	}
	return 0
}

func (p *process) flags() uint8 {
	n := uint8(0)
	for i, b := range [...]bool{p.stale, p.second, p.saved, p.leaves, p.hasLock, p.since, p.closing, p.listened} {
		if b {
			n |= 1 << i
		}
	}
	return n
}

// rename gives the inodes that are in use new numbers, in the order of their
// appearance.
func (s *state) rename() {
	var fileTo, sockTo, lockTo [most * 2]uint8
	files, socks, locks := uint8(0), uint8(0), uint8(0)
	old := s.files
	s.files = [most]inode{}
	file := func(id *uint8) {
		if *id == 0 {
			return
		}
		if fileTo[*id] == 0 {
			files++
			fileTo[*id] = files
			s.files[files] = old[*id]
		}
		*id = fileTo[*id]
	}
	of := func(id *uint8, to *[most * 2]uint8, n *uint8) {
		if *id == 0 {
			return
		}
		if to[*id] == 0 {
			*n++
			to[*id] = *n
		}
		*id = to[*id]
	}
	file(&s.path)
	of(&s.socket, &sockTo, &socks)
	of(&s.lock, &lockTo, &locks)
	for i := range s.procs {
		p := &s.procs[i]
		file(&p.file)
		file(&p.copy)
		of(&p.sock, &sockTo, &socks)
		of(&p.newSock, &sockTo, &socks)
		of(&p.sockID, &sockTo, &socks)
		of(&p.peer, &sockTo, &socks)
		of(&p.lock, &lockTo, &locks)
	}
}

func (s *state) newFile(f inode) uint8 {
	for id := uint8(1); ; id++ {
		if !s.files[id].used {
			f.used = true
			s.files[id] = f
			return id
		}
	}
}

func (s *state) newSocket() uint8 {
	id := s.socket
	for _, p := range s.procs {
		id = max(id, p.sock, p.newSock, p.sockID, p.peer)
	}
	return id + 1
}

func (s *state) newLock() uint8 {
	id := s.lock
	for _, p := range s.procs {
		id = max(id, p.lock)
	}
	return id + 1
}

// listener returns the process that listens at a socket, or nil.
func (s *state) listener(socket uint8) *process {
	for i := range s.procs {
		p := &s.procs[i]
		if p.at != gone && socket != 0 && (p.sock == socket && p.listened || p.newSock == socket && p.again == listen+1) {
			return p
		}
	}
	return nil
}

func (s *state) fileLocked(id uint8, by *process) bool {
	for i := range s.procs {
		if p := &s.procs[i]; p != by && (p.file == id && p.hasFile || p.copy == id) {
			return true
		}
	}
	return false
}

func (s *state) lockLocked(id uint8) bool {
	return slices.ContainsFunc(s.procs[:], func(p process) bool { return p.lock == id && p.hasLock })
}

func (x *explorer) visit(from int32) {
	s := x.states[from]
	for i := range s.procs {
		p := &s.procs[i]
		if p.at == gone {
			continue
		}
		step := func(how string, f func(s *state, p *process)) {
			n := s
			f(&n, &n.procs[i])
			x.checkOwners(&n)
			x.add(n, from, i, how)
		}
		x.main(&s, p, step)
		x.background(&s, p, step)
		if s.kills > 0 {
			step("killed", func(s *state, p *process) {
				s.kills--
				if p.opened && s.path == 0 && !s.files[p.file].replaced {
					s.acked = false
				}
				*p = process{}
			})
		}
	}
	if s.changes == 0 {
		return
	}
	change := func(how string, f func(s *state)) {
		n := s
		n.changes--
		f(&n)
		x.add(n, from, -1, how)
	}
	if s.path != 0 {
		change("file removed", func(s *state) {
			has := slices.ContainsFunc(s.procs[:], func(p process) bool { return p.opened && p.file == s.path && p.at != closeFile })
			s.acked = s.acked && has
			s.path = 0
		})
		change("file replaced", func(s *state) {
			for i := range s.files {
				s.files[i].replaced = s.files[i].used
			}
			s.path = s.newFile(inode{})
			s.acked = false
			for i := range s.procs {
				s.procs[i].since = false
			}
		})
	}
	if s.socket != 0 {
		change("socket removed", func(s *state) { s.socket = 0 })
	}
}

// checkOwners looks for two owners.
func (x *explorer) checkOwners(s *state) {
	n := 0
	for _, p := range s.procs {
		if p.serving && !p.closing && !s.files[p.file].replaced {
			n++
		}
	}
	if n > 1 {
		x.breaks(twoOwners)
	}
}

type stepper func(how string, f func(s *state, p *process))

// main takes the next step of a process.
func (x *explorer) main(s *state, p *process, step stepper) {
	name := stepNames[p.at]
	alone := func(why string, stale bool) { // no owner was found
		step(name+": "+why, func(_ *state, p *process) {
			p.peer, p.since, p.stale = 0, false, stale
			switch {
			case p.second || x.without.lock && (!stale || x.without.secondLook):
				p.second, p.at = false, open
			case x.without.lock:
				p.second, p.at = true, look
			default:
				p.at = openLock
			}
		})
	}
	switch p.at {
	case look:
		if s.listener(s.socket) == nil {
			alone("none", true)
		} else {
			step(name, func(s *state, p *process) { p.peer, p.since, p.at = s.socket, true, hello })
		}
	case hello:
		alone("no welcome", false) // silence, or the process has hung up, is closing, or has another file
		if q := s.listener(p.peer); q != nil && !q.closing && (s.path == 0 || s.path == q.file || x.without.checkHello) {
			step(name, func(_ *state, p *process) { p.at = welcome })
		}
	case welcome:
		if q := s.listener(p.peer); p.since && q != nil && q.file != s.path && s.path != 0 && s.files[q.file].replaced {
			x.breaks(oldFile)
		}
		step(name, func(s *state, p *process) {
			p.stale, p.since = false, false
			if p.at = guest; p.second {
				p.second, p.at = false, freeLock // with a peer: it is a guest then
			}
		})
	case guest:
		step("lost", func(_ *state, p *process) { p.peer, p.at = 0, look })
	case openLock, closeLock:
		step(name, func(s *state, p *process) {
			if s.lock == 0 {
				s.lock = s.newLock()
			}
			p.lock = s.lock
			p.at++
		})
	case lock, closeLocked:
		step(name, func(s *state, p *process) {
			if !s.lockLocked(p.lock) {
				p.hasLock = true
				p.at++
				return
			}
			p.notLocked()
		})
	case checkLock, closeCheck:
		step(name, func(s *state, p *process) {
			switch {
			case p.lock != s.lock:
				p.notLocked()
			case p.at == closeCheck:
				p.at = checkSocket
			case p.stale && !x.without.secondLook:
				p.second, p.at = true, look
			default:
				p.at = open
			}
		})
	case open:
		step(name, func(s *state, p *process) {
			switch {
			case s.path != 0:
				p.at = openFile
			case p.stale:
				p.at = link
			default:
				p.at = freeLock
			}
		})
	case link:
		step(name, func(s *state, p *process) {
			if s.path == 0 {
				s.path = s.newFile(inode{})
			}
			p.at = openFile
		})
	case openFile:
		step(name, func(s *state, p *process) {
			switch p.file = s.path; {
			case p.file != 0:
				p.at = lockFile
			case p.stale:
				p.at = open
			default:
				p.at = freeLock
			}
		})
	case lockFile:
		step(name, func(s *state, p *process) {
			if s.fileLocked(p.file, p) {
				p.file, p.at = 0, freeLock
			} else {
				p.hasFile, p.at = true, checkFile
			}
		})
	case checkFile:
		if s.path != p.file && !x.without.checkFile {
			for _, at := range []uint8{open, freeLock} {
				step(name+": another file", func(_ *state, p *process) { p.file, p.hasFile, p.at = 0, false, at })
			}
			break
		}
		if s.acked && !s.files[p.file].decision && !s.files[p.file].replaced {
			x.breaks(lost)
		}
		step(name, func(_ *state, p *process) { p.opened, p.stale, p.at = true, false, clearSocket })
	case clearSocket:
		step(name, func(s *state, p *process) {
			switch {
			case s.socket == 0:
				p.at = bind
			case s.listener(s.socket) == nil:
				p.at = removeStale
			default:
				p.peer, p.at = s.socket, ask
			}
		})
	case ask:
		q := s.listener(p.peer)
		step(name+": an owner, or silence", func(_ *state, p *process) { p.peer, p.at = 0, lookForFile })
		switch {
		case q == nil:
			step(name+": hung up", func(_ *state, p *process) { p.peer, p.at = 0, clearSocket })
		case q.closing || s.path != 0 && s.path != q.file:
			step(name+": closing", func(_ *state, p *process) { p.peer, p.at = 0, removeStale })
		}
	case removeStale:
		step(name, func(s *state, p *process) { s.socket, p.at = 0, bind })
	case bind:
		step(name, func(s *state, p *process) {
			if p.at = lookForFile; s.socket == 0 {
				s.socket = s.newSocket()
				p.sock, p.at = s.socket, listen
			}
		})
	case listen:
		step(name, func(_ *state, p *process) { p.listened, p.at = true, stat })
	case stat:
		step(name, func(s *state, p *process) {
			switch {
			case s.socket == 0:
				p.at = giveUpSocket
			case x.without.lock:
				p.sockID, p.serving, p.at = s.socket, true, owner
			default:
				p.sockID, p.serving, p.at = s.socket, true, removeLock
			}
		})
	case giveUpSocket:
		step(name, func(s *state, p *process) { s.socket, p.sock, p.listened, p.at = 0, 0, false, lookForFile })
	case removeLock, freeLock:
		step(name, func(s *state, p *process) {
			if p.lock != 0 {
				s.lock = 0
			}
			p.at++
		})
	case unlock, freedLock:
		step(name, func(_ *state, p *process) {
			p.lock, p.hasLock = 0, false
			switch {
			case p.at == unlock:
				p.at = owner
			case p.closing && p.file != 0:
				p.at = lookForFile
			case p.closing:
				p.end()
			case p.peer != 0:
				p.at = guest
			default:
				p.stale, p.at = false, look
			}
		})
	case owner:
		step("close", func(_ *state, p *process) { p.at = shut })
		if s.path != 0 && s.path != p.file {
			step("replaced", func(_ *state, p *process) { p.leaves, p.at = true, shut })
		}
	case shut:
		if p.again != 0 { // it has the Server's lock
			break
		}
		step(name, func(_ *state, p *process) {
			if p.closing, p.at = true, lookForFile; p.leaves || x.without.listening {
				p.at = x.toSocket()
			}
		})
	case lookForFile:
		if p.saved || p.copy != 0 {
			break
		}
		step(name, func(s *state, p *process) {
			p.at = closeFile
			if s.path == 0 && !x.without.putBack {
				p.copy = s.newFile(s.files[p.file])
				p.at = linkBack
			}
		})
	case linkBack:
		step(name, func(s *state, p *process) {
			if s.path == 0 {
				s.path, p.file = p.copy, p.copy
			}
			p.copy, p.at = 0, closeFile
		})
	case closeFile:
		step(name, func(_ *state, p *process) {
			p.file, p.hasFile, p.opened = 0, false, false
			switch {
			case !p.closing: // after an error
				p.at = freeLock
			case p.sock != 0:
				p.at = x.toSocket()
			default:
				p.end()
			}
		})
	case checkSocket:
		step(name, func(s *state, p *process) {
			if p.at = removeSocket; s.socket != p.sockID {
				p.at = closeSocket
			}
		})
	case removeSocket:
		step(name, func(s *state, p *process) { s.socket, p.at = 0, closeSocket })
	case closeSocket:
		step(name, func(s *state, p *process) {
			p.sock, p.sockID, p.listened, p.at = 0, 0, false, freeLock
		})
	}
}

// toSocket returns the step with which a closing owner begins to remove its socket.
func (x *explorer) toSocket() uint8 {
	if x.without.lock || x.without.socketLock {
		return checkSocket
	}
	return closeLock
}

// end ends an owner that has closed, or begins its look for another one.
func (p *process) end() {
	leaves := p.leaves
	if *p = (process{}); leaves {
		p.at = look
	}
}

// notLocked notes that another process has the lock.
func (p *process) notLocked() {
	p.lock, p.hasLock = 0, false
	if p.at = closeSocket; !p.closing {
		p.at = look
	}
}

// background takes the steps of an owner's other goroutines.
func (x *explorer) background(s *state, p *process, step stepper) {
	if p.serving && !p.closing && !p.saved && !s.files[p.file].decision {
		step("save", func(s *state, p *process) { s.files[p.file].decision, p.saved = true, true })
	}
	if p.saved {
		step("acknowledge", func(s *state, p *process) {
			p.saved = false
			s.acked = s.acked || s.path == p.file
		})
	}
	if p.opened && p.copy == 0 && s.path == 0 && p.at != linkBack && p.at != closeFile {
		step("copy", func(s *state, p *process) { p.copy = s.newFile(s.files[p.file]) })
	}
	if p.copy != 0 && p.at != linkBack {
		step("link copy", func(s *state, p *process) {
			if s.path == 0 {
				s.path = p.copy
				s.files[p.copy].decision = s.files[p.file].decision
				p.file = p.copy
			}
			p.copy = 0
		})
	}
	x.listenAgain(s, p, step)
}

// listenAgain makes a socket anew that was removed.
func (x *explorer) listenAgain(s *state, p *process, step stepper) {
	name := "listen again: " + stepNames[p.again]
	switch {
	case !p.serving || p.closing:
	case p.again == 0:
		if s.path == p.file && s.socket != p.sockID {
			step("listen again", func(_ *state, p *process) { p.again = clearSocket })
		}
	case p.again == clearSocket: // the listener of another one is asked in the same step
		step(name, func(s *state, p *process) {
			q := s.listener(s.socket)
			switch {
			case s.socket == 0:
				p.again = bind
			case q == nil || q.closing || s.path != 0 && s.path != q.file:
				p.again = removeStale
			default:
				p.again = 0
			}
		})
	case p.again == removeStale:
		step(name, func(s *state, p *process) { s.socket, p.again = 0, bind })
	case p.again == bind:
		step(name, func(s *state, p *process) {
			if s.socket != 0 {
				p.again = 0
				return
			}
			s.socket = s.newSocket()
			p.newSock, p.again = s.socket, listen
		})
	case p.again == listen:
		step(name, func(_ *state, p *process) { p.again++ })
	case p.again == giveUpSocket:
		step(name, func(s *state, p *process) { s.socket, p.again = 0, 0 })
	default:
		step(name, func(s *state, p *process) {
			if s.socket == 0 {
				p.newSock, p.again = 0, giveUpSocket
				return
			}
			p.sock, p.sockID, p.newSock, p.again = p.newSock, s.socket, 0, 0
		})
	}
}

// checkEnd looks for a state from which there is no way to an owner.
func (x *explorer) checkEnd() {
	count := make([]int32, len(x.states)+1)
	for _, to := range x.next {
		count[to+1]++
	}
	for i := range x.states {
		count[i+1] += count[i]
	}
	before, fill := make([]int32, len(x.next)), slices.Clone(count)
	for from := range x.states {
		for _, to := range x.next[x.first[from]:x.first[from+1]] {
			before[fill[to]] = int32(from)
			fill[to]++
		}
	}
	good := make([]bool, len(x.states))
	var queue []int32
	for i := range x.states {
		if x.states[i].settled() {
			good[i] = true
			queue = append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		i := queue[0]
		queue = queue[1:]
		for _, from := range before[count[i]:count[i+1]] {
			if !good[from] {
				good[from] = true
				queue = append(queue, from)
			}
		}
	}
	if i := slices.Index(good, false); i >= 0 {
		x.at = int32(i)
		x.breaks(noOwner)
	}
}

// settled reports whether one process is the owner, and all others its guests, or
// whether none is left.
func (s *state) settled() bool {
	owners, others := uint8(0), 0
	for _, p := range s.procs {
		switch {
		case p.at == gone:
		case p.at == owner && p.file == s.path && p.sock == s.socket:
			owners++
		default:
			others++
		}
	}
	if owners+uint8(others) == 0 {
		return true
	}
	for _, p := range s.procs {
		if p.at == guest && s.listener(p.peer) != nil && s.listener(p.peer).at == owner {
			others--
		}
	}
	return owners == 1 && others == 0
}
