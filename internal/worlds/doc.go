// Package worlds takes Limiters through long and hard lives: random histories
// beside a model, processes that are killed, power cuts, disks that fail, and files
// that are damaged, replaced or taken away. Its tests use only what a program can
// use. A test elsewhere calls Env for a Limiter that package modeltest can drive,
// and what opens and copies files. Only tests use it.
package worlds
