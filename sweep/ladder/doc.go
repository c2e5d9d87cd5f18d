// Package ladder holds the runs of a sweep as rows: one row a run, one rate a
// rung. Rows come from CSV files or from run records, and go into CSV files.
//
// A CSV file has a header with at least the nine Columns by name, in any order;
// further columns are allowed. Rates are requests a second, times microseconds
// where the name ends in _us and seconds where it ends in _s. Offered is the
// rate that was asked for; the share of drops is dropped / (offered *
// measure_s), by each row's own measure_s.
//
// One file is one ladder: one product with one set of settings. What is wrong
// with a file is an InputError, which names the file and the line.
package ladder
