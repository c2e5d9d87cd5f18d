// Package report makes one page of ladders: what was measured, how it is
// judged, and on what that rests, for a reader who wants to check it.
//
// The page is one HTML file. It loads nothing, works without a network, and
// without scripts but for its slider. The slider moves the bound of p99/p50;
// the zones for each of its positions are computed here, by package zone, and
// shipped as a table, so that page and program cannot disagree.
//
// A chart is laid out once, as a figure of lines, marks and texts, and then
// written as SVG or drawn as PNG. The layout is our own rather than
// gonum.org/v1/plot's because colours have to follow the reader's scheme, the
// zone has to move with the slider, and panels share one axis; that needs named
// parts in the SVG. The PNG is drawn by plot's vector canvas, with its fonts,
// which also measure the texts.
//
// Colours are those of Okabe and Ito, "Color Universal Design" (2008), which
// stay apart for colour-blind readers; dashes and marks differ as well.
package report
