// Package chart draws counts that grow with time, as an SVG picture that is
// legible on a light and on a dark page.
package chart
