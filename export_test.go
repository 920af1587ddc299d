package stint

// Long is long, for the tests of package stint_test.
const Long = long
