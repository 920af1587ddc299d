package stint

import bolt "go.etcd.io/bbolt"

// The pages of bbolt have no checksums, and a TAT is 8 plain bytes. So each bucket of the database has a sum of all that is
// in it: that of a hash of each entry, in the 64 bits that bbolt keeps beside a bucket's root and calls its sequence. It is
// written with the root, which changes whenever an entry does, so that it costs no page; and in the same transaction, so that
// no crash comes between. Two entries may come in any order: sums are added and subtracted, modulo 2⁶⁴.
//
// Only Verify looks at it, because that means to read all of the file. A bucket of a file that has none, where it is 0, goes
// on without, until a compaction writes it anew.

// sumStart is the sum of an empty bucket.
const sumStart = golden

// entrySum is what an entry adds to the sum of the bucket of that name. Any one byte of it that changes alone changes
// it: each step can be undone.
func entrySum(bucket, key, value []byte) uint64 {
	sum := uint64(14695981039346656037) // FNV-1a
	for _, part := range [...][]byte{bucket, {0, byte(len(key) >> 8), byte(len(key))}, key, value} {
		for _, c := range part {
			sum = (sum ^ uint64(c)) * 1099511628211
		}
	}
	sum = (sum ^ sum>>32) * golden
	return sum ^ sum>>32
}

// recordSumOf is what a journal record adds to the journal's sum: its checksum stands for the rest of it.
func recordSumOf(key, record []byte) uint64 {
	return entrySum(journalBucket, key, record[:min(4, len(record))])
}

// addSum adds to the sum of a bucket that has one.
func addSum(b *bolt.Bucket, sum uint64) error {
	if have := b.Sequence(); have != 0 && sum != 0 {
		return b.SetSequence(have + sum)
	}
	return nil
}

// putSummed puts an entry into the bucket of that name, or deletes it where the value is nil.
func putSummed(b *bolt.Bucket, bucket, key, value []byte) error {
	var sum uint64
	if b.Sequence() != 0 {
		if old := b.Get(key); old != nil {
			sum -= entrySum(bucket, key, old)
		}
		if value != nil {
			sum += entrySum(bucket, key, value)
		}
	}
	if value == nil {
		if err := b.Delete(key); err != nil {
			return err
		}
	} else if err := b.Put(key, value); err != nil {
		return err
	}
	return addSum(b, sum)
}

// keepSum gives a bucket, into which all of another was copied, the sum of that, if it has one: what is wrong in the one
// is so in the other, and is found there.
func keepSum(to, from *bolt.Bucket) error {
	if to == nil || from == nil || from.Sequence() == 0 {
		return nil
	}
	return to.SetSequence(from.Sequence())
}

// keepSums is keepSum for all buckets but the journal.
func (s *BoltStore) keepSums(target *boltFile) error {
	return s.view(func(from *bolt.Tx) error {
		return target.update(func(to *bolt.Tx) error {
			for _, name := range namesIn(from) {
				if err := keepSum(to.Bucket(bucketOf(name)), from.Bucket(bucketOf(name))); err != nil {
					return err
				}
			}
			return keepSum(to.Bucket(metaBucket).Bucket(namesBucket), from.Bucket(metaBucket).Bucket(namesBucket))
		})
	})
}
