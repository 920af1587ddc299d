//go:build unix

package hostlimit

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// All paths of a file lead to one socket.
func TestSocket(t *testing.T) {
	limits := limitsWith(t, nil)
	shares := func(t *testing.T, one, other string) {
		t.Helper()
		owner, guest := openOn(t, one, limits, nil), openOn(t, other, limits, nil)
		require.Equal(t, RoleOwner, owner.Role())
		require.Equal(t, RoleGuest, guest.Role())
		require.NoError(t, guest.Close())
		require.NoError(t, owner.Close())
	}
	t.Run("links", func(t *testing.T) {
		path := filePath(t)
		link, folder := filepath.Join(filepath.Dir(path), "link.db"), filepath.Dir(path)+".link"
		require.NoError(t, os.Symlink(path, link))
		require.NoError(t, os.Symlink(filepath.Dir(path), folder))
		defer os.Remove(folder)
		shares(t, path, link)
		shares(t, link, filepath.Join(folder, "quota.db"))
	})
	t.Run("a relative path", func(t *testing.T) {
		path := filePath(t)
		t.Chdir(filepath.Dir(path))
		shares(t, "quota.db", path)
	})
	t.Run("a path that is too long", func(t *testing.T) {
		path := filepath.Join(filepath.Dir(filePath(t)), strings.Repeat("x", 90), "quota.db")
		require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
		require.Equal(t, path+".sock", placeFor(t, path).socket, "in the file's own folder")
		shares(t, path, path)
		shares(t, filepath.Join(filepath.Dir(path), strings.Repeat("y", 100)+".db"),
			filepath.Join(filepath.Dir(path), strings.Repeat("y", 100)+".db"))
	})
	t.Run("a long name in folders that are mounted elsewhere", func(t *testing.T) {
		name := strings.Repeat("y", 60) + ".db"
		short, long := filepath.Dir(filePath(t)), filepath.Join(filepath.Dir(filePath(t)), strings.Repeat("x", 40))
		require.NoError(t, os.Mkdir(long, 0o700))
		here := placeFor(t, filepath.Join(short, name))
		there := placeFor(t, filepath.Join(long, name))
		require.Equal(t, filepath.Base(here.socket), filepath.Base(there.socket))
	})
	t.Run("a path that is too long, without /proc", func(t *testing.T) {
		path := filepath.Join(filepath.Dir(filePath(t)), strings.Repeat("x", 90), "quota.db.sock")
		require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
		short, done, err := shortenByLink(path)
		require.NoError(t, err)
		require.Less(t, len(short), maxSocketPath)
		l, err := net.Listen("unix", short)
		require.NoError(t, err)
		require.NoError(t, errorOf(os.Lstat(path)))
		require.NoError(t, l.Close())
		done()
		require.ErrorIs(t, errorOf(os.Lstat(filepath.Dir(filepath.Dir(short)))), os.ErrNotExist)
	})
	t.Run("a socket that a dead process has left", func(t *testing.T) {
		path := filePath(t)
		p := placeFor(t, path)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.socket})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
		require.ErrorIs(t, errorOf(Dial(path, nil, nil)), ErrNoOwner)
		shares(t, path, path)
	})
	t.Run("a file that nobody serves", func(t *testing.T) {
		path := filePath(t)
		l := openAlone(t, path, limits, nil)
		_, err := Open(path, limits, &Options{LimiterOptions: stint.Options{LockTimeout: 1}})
		require.ErrorIs(t, err, stint.ErrLocked)
		require.ErrorIs(t, err, ErrNoOwner)
		require.ErrorContains(t, err, "a process that does not share it")
		s, err := Serve(l, path, nil)
		require.NoError(t, err)
		guest := openOn(t, path, limits, nil)
		require.Equal(t, RoleGuest, guest.Role())
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
	})
	t.Run("options", func(t *testing.T) {
		path := filePath(t)
		for _, o := range []Options{{TakeoverTimeout: -1}, {MaxGuests: -1}, {LimiterOptions: stint.Options{LockTimeout: -1}}} {
			require.ErrorContains(t, errorOf(Open(path, limits, &o)), "want more than 0")
		}
		_, err := Open(path, nil, nil)
		require.Error(t, err)
		_, err = Serve(nil, path, nil)
		require.Error(t, err)
		_, err = Dial(path, nil, &Options{TakeoverTimeout: -1})
		require.Error(t, err)
	})
}
