package format

import "bytes"

const golden = 0x9E3779B97F4A7C15 // 2⁶⁴ ÷ the golden ratio

// SumStart is the sum of an empty bucket. A sequence of 0 means that the bucket
// has no sum.
//
// The pages of bbolt have no checksums. So each bucket keeps the sum of the
// hashes of its entries in the 64 bits that bbolt calls its sequence. bbolt
// writes them with the root of the bucket, which changes whenever an entry
// does. So a sum costs no page, and is as durable as the entry.
const SumStart uint64 = golden

// EntrySum returns the part of a bucket's sum that is due to one entry. Each
// step can be undone, so a change of any single byte changes the result. For a
// record of the journal it hashes only the key and the record's checksum, which
// covers the rest.
func EntrySum(bucket, key, value []byte) uint64 {
	if bytes.Equal(bucket, JournalBucket) {
		value = value[:min(4, len(value))]
	}
	sum := uint64(14695981039346656037) // FNV-1a
	for _, part := range [...][]byte{bucket, {0, byte(len(key) >> 8), byte(len(key))}, key, value} {
		for _, c := range part {
			sum = (sum ^ uint64(c)) * 1099511628211
		}
	}
	sum = (sum ^ sum>>32) * golden
	return sum ^ sum>>32
}
