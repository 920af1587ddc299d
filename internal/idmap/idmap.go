package idmap

import (
	"hash/maphash"
	"iter"
	"slices"
)

const (
	fanBits  = 4
	hashBits = 32 // the tree is at most hashBits/fanBits deep
	mostIDs  = 32 // in a leaf, unless it is at the bottom
)

var seed = maphash.MakeSeed()

// Map is an immutable map from ids to values. The zero Map is empty.
type Map[V any] struct {
	root node[V]
	n    int
}

// node is a leaf, or has children.
type node[V any] struct {
	children []node[V] // by the next bits of the hash; nil in a leaf
	leaf     []entry[V]
}

type entry[V any] struct {
	id    string
	value V
	hash  uint32
}

// hash returns the hash of an id. Tests replace it.
var hash = func(id string) uint32 { return uint32(maphash.String(seed, id)) }

// child returns the index of the child that a hash belongs to.
func child(hash uint32, depth int) uint32 { return hash >> (fanBits * depth) % (1 << fanBits) }

// find returns the index of an id in a leaf, or -1.
func (n *node[V]) find(id string, hash uint32) int {
	for i := range n.leaf {
		if e := &n.leaf[i]; e.hash == hash && e.id == id {
			return i
		}
	}
	return -1
}

// Len returns the number of ids.
func (m Map[V]) Len() int { return m.n }

// Get returns the value of an id. It takes the Map by its address, because a copy takes
// 10 ns, and the search 30.
func (m *Map[V]) Get(id string) (value V, ok bool) {
	h, n := hash(id), &m.root
	for depth := 0; n.children != nil; depth++ {
		n = &n.children[child(h, depth)]
	}
	if i := n.find(id, h); i >= 0 {
		return n.leaf[i].value, true
	}
	return value, false
}

// IDs returns the ids, in no order.
func (m Map[V]) IDs() iter.Seq[string] {
	return func(yield func(string) bool) { m.root.each(yield) }
}

func (n *node[V]) each(yield func(string) bool) bool {
	for i := range n.leaf {
		if !yield(n.leaf[i].id) {
			return false
		}
	}
	for i := range n.children {
		if !n.children[i].each(yield) {
			return false
		}
	}
	return true
}

// With returns a Map in which an id has this value.
func (m Map[V]) With(id string, value V) Map[V] {
	m.n += m.root.put(entry[V]{id, value, hash(id)}, 0, true)
	return m
}

// Without returns a Map without an id.
func (m Map[V]) Without(id string) Map[V] {
	m.n -= m.root.drop(id, hash(id), 0)
	return m
}

// put puts an entry into n, and returns the number of ids that this adds. If
// share is true, other Maps use the nodes below n, so put copies those that it
// changes.
func (n *node[V]) put(e entry[V], depth int, share bool) (added int) {
	if share {
		n.children, n.leaf = slices.Clone(n.children), slices.Clone(n.leaf)
	}
	if n.children != nil {
		return n.children[child(e.hash, depth)].put(e, depth+1, share)
	}
	if i := n.find(e.id, e.hash); i >= 0 {
		n.leaf[i] = e
		return 0
	}
	n.leaf = append(n.leaf, e)
	if len(n.leaf) > mostIDs && fanBits*depth < hashBits {
		leaf := n.leaf
		n.leaf, n.children = nil, make([]node[V], 1<<fanBits)
		for _, e := range leaf {
			n.children[child(e.hash, depth)].put(e, depth+1, false)
		}
	}
	return 1
}

// drop removes an id from n, and returns the number of ids that this removes.
// It copies nodes as put does with share.
func (n *node[V]) drop(id string, hash uint32, depth int) (removed int) {
	n.children, n.leaf = slices.Clone(n.children), slices.Clone(n.leaf)
	if n.children != nil {
		return n.children[child(hash, depth)].drop(id, hash, depth+1)
	}
	i := n.find(id, hash)
	if i < 0 {
		return 0
	}
	n.leaf = slices.Delete(n.leaf, i, i+1)
	return 1
}

// Builder makes a Map of many ids. The zero Builder is empty. It must not be
// used after Map.
type Builder[V any] struct{ m Map[V] }

// Put gives an id a value, and reports whether the id is new.
func (b *Builder[V]) Put(id string, value V) bool {
	added := b.m.root.put(entry[V]{id, value, hash(id)}, 0, false)
	b.m.n += added
	return added > 0
}

// Map returns a Map with all ids that were put.
func (b *Builder[V]) Map() Map[V] { return b.m }
