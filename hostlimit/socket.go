package hostlimit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/stint-go/stint/internal/boltstore"
)

// maxSocketPath is a length that every system allows for a socket's path.
const maxSocketPath = 100

// place has the paths of a file and its socket.
type place struct {
	file   string // without links
	socket string
	folder string // of the socket; "" if it is beside the file
	uid    int    // of the folder
}

// placeOf returns the place of a file, which need not be there yet.
func placeOf(path string) (place, error) {
	file, err := boltstore.Resolve(path)
	if err == nil {
		file, err = filepath.Abs(file)
	}
	if err == nil { // the folder may be reached by several paths, too
		var folder string
		folder, err = filepath.EvalSymlinks(filepath.Dir(file))
		file = filepath.Join(folder, filepath.Base(file))
	}
	if err != nil {
		return place{}, fmt.Errorf("hostlimit: %w", err)
	}
	p := place{file: file, socket: file + ".sock"}
	if len(p.socket) > maxSocketPath {
		sum := sha256.Sum256([]byte(file))
		p.uid = ownerOf(file)
		p.folder = filepath.Join(socketFolder(), fmt.Sprintf("stint-%d", p.uid))
		p.socket = filepath.Join(p.folder, hex.EncodeToString(sum[:16])+".sock")
	}
	return p, nil
}

// listen makes the socket. The caller has the file, so a socket that is there
// belongs to no process.
func (p place) listen(file os.FileInfo) (net.Listener, error) {
	if p.folder != "" {
		if err := makeFolder(p.folder, p.uid); err != nil {
			return nil, err
		}
	}
	if err := os.Remove(p.socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.Listen("unix", p.socket)
	if noSockets(err) {
		err = fmt.Errorf("this system has no Unix sockets: %w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return nil, err
	}
	if err := protect(p.socket, file); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
