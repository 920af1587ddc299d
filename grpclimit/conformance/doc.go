// Package conformance tests grpclimit with grpc-gateway, connect-go and vanguard,
// which a program that imports grpclimit must not have to download.
package conformance
