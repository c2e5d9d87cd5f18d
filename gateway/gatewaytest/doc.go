// Package gatewaytest holds the tests and benchmarks that every product behind
// the gateway has to pass, and the cluster of three server processes that they
// run on. A product's test package describes itself in a Product, calls Main
// from TestMain and Run from a test, and adds what is its library's alone:
//
//	func TestMain(m *testing.M) { gatewaytest.Main(m, product) }
//	func TestProduct(t *testing.T) { gatewaytest.Run(t, product) }
//
// The test binary is also the server, built with the same flags, race detector
// included. By hand:
//
//	go test -c -o hashiraft.test ./hashiraft
//	RAFTRIG_TEST_SERVER=1 RAFTRIG_TEST_FORGET=1000 ./hashiraft.test -id 1 ...
package gatewaytest

import (
	"testing"

	"raftrig/gateway/serve"
)

// Product says what a test has to know of a product.
type Product struct {
	// Server makes the product's server program, anew for each use.
	Server func() serve.Product
	// QuickElections are flags with which a follower stands for election after
	// about half a second. The defaults bear a leader that pauses as long.
	QuickElections []string
	// SmallSnapshots are flags with which a snapshot is made every few hundred
	// entries, a few hundred milliseconds after that at the latest, and no more
	// entries are kept behind it.
	SmallSnapshots []string
	// MemoryLog and DiskLog are how Status.Log begins, without and with -data.
	MemoryLog, DiskLog string
	// Refused are wrong values of the product's own flags, each as flag and
	// value: what the server refuses with exit status 2 and a line that begins
	// with them.
	Refused [][2]string
	// Apply has a node of Server's Start apply a command in the library's own
	// way, without the gateway, and waits for it.
	Apply func(node serve.Node, command []byte) error
}

// Run runs all tests.
func Run(t *testing.T, p Product) {
	for _, test := range []struct {
		name string
		f    func(*testing.T, Product)
	}{
		{"Conformance", testConformance},
		{"RunAndVerify", testRunAndVerify},
		{"VerifyFindsAForgottenRequest", testVerifyFindsAForgottenRequest},
		{"LeaderKilledInMidRun", testLeaderKilledInMidRun},
		{"NodeDown", testNodeDown},
		{"ClientFollowsTransfers", testClientFollowsTransfers},
		{"AppliesEverywhereAndHandsOver", testAppliesEverywhereAndHandsOver},
		{"LeaderKilled", testLeaderKilled},
		{"PausedLeaderKeepsOffice", testPausedLeaderKeepsOffice},
		{"FollowerComesBackEmpty", testFollowerComesBackEmpty},
		{"KilledWithData", testKilledWithData},
		{"DataOfAnother", testDataOfAnother},
		{"RefusesToStart", testRefusesToStart},
		{"EndsWhenLeadershipIsLost", testEndsWhenLeadershipIsLost},
		{"TellsOfLeadership", testTellsOfLeadership},
		{"CloseEndsWhatIsOnItsWay", testCloseEndsWhatIsOnItsWay},
		{"TransferUnderLoad", testTransferUnderLoad},
	} {
		t.Run(test.name, func(t *testing.T) { test.f(t, p) })
	}
}
