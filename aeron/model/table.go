package model

// Row is a line of the worked table: one message size at both MTUs.
type Row struct {
	Payload int  `json:"payload_bytes"`
	Framed  int  `json:"framed_bytes"`
	Small   Cell `json:"at_1408"`
	Large   Cell `json:"at_8192"`
}

// Cell is messages a datagram and messages a second.
type Cell struct {
	PerDatagram int     `json:"per_datagram"`
	Fragments   int     `json:"fragments"`
	Peak        float64 `json:"peak_per_s"`
}

// TablePayloads are the message sizes of the published table, in bytes.
var TablePayloads = []int{32, 128, 224, 512, 1344}

// Table is the worked table for the leader's path with S, C and D of p.
func Table(p Path, payloads []int) ([]Row, error) {
	var rows []Row
	for _, payload := range payloads {
		p.Payload = payload
		row := Row{Payload: payload}
		for mtu, cell := range map[int]*Cell{SmallMTU: &row.Small, LargeMTU: &row.Large} {
			p.MTU = mtu
			if err := p.Validate(); err != nil {
				return nil, err
			}
			row.Framed = p.Framed()
			*cell = Cell{p.PerDatagram(), p.Fragments(), p.Peak()}
		}
		rows = append(rows, row)
	}
	return rows, nil
}
