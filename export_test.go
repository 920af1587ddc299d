package stint

// Names for the tests of package stint_test.
const Long = long

var Self = self
