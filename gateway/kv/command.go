package kv

import (
	"encoding/binary"
	"fmt"
)

const (
	// KeySize is the length of a command's key in bytes; no command is shorter.
	KeySize = 8
	// MaxCommand bounds a command, key included, in bytes. It is what
	// hashicorp/raft suggests as the largest entry that does not delay
	// heartbeats.
	MaxCommand = 512 << 10
)

// Append appends the command that sets key to value to dst.
func Append(dst []byte, key uint64, value []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, key)
	return append(dst, value...)
}

// Key returns the key of a command that passed Check.
func Key(cmd []byte) uint64 { return binary.LittleEndian.Uint64(cmd) }

// Value returns the value of a command that passed Check. It is part of cmd.
func Value(cmd []byte) []byte { return cmd[KeySize:] }

// Check says what is wrong with a command, if anything. A server calls it
// before it proposes: what is in the log has to be applied on every node.
func Check(cmd []byte) error {
	if len(cmd) < KeySize {
		return fmt.Errorf("command of %d bytes: it begins with a key of %d", len(cmd), KeySize)
	}
	if len(cmd) > MaxCommand {
		return fmt.Errorf("command of %d bytes: at most %d are allowed", len(cmd), MaxCommand)
	}
	return nil
}
