// Package deploy makes a fleet on EC2: three nodes and a client's host, by the
// terraform files in this folder, and the inventory (.env) that leads to them.
//
// Everything that is known of a fleet is terraform's state; nothing else is
// remembered. A state may be of a fleet that is half made, and then the next
// Deploy completes it. .env exists only while it is true: Deploy and Destroy
// remove it before they change anything, and Deploy writes it when all four
// hosts are up.
//
// Terraform is run by its own command. Its plans, states and messages are read
// as JSON, so that an error of AWS becomes one line that says what to do.
package deploy
