package httplimit

// Long has tests run at full length.
const Long = long
