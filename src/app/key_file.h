// Key files: where a process finds the key it signs with, and a person the key to check by.
//
// Threads: any; they read a file and forget it.
#pragma once

#include <string>

#include "base/error.h"
#include "base/sign.h"
#include "net/tls_identity.h"

namespace ae::app {

// A PEM file with an Ed25519 private key. Fails with usage: not readable, no such key, or readable by others than its
// owner (the file must have the mode 0600 or less).
Result<SigningKey> read_signing_key(const std::string& path);
// What a file that only its owner can read holds, without the line breaks around it. `what` it is, for messages. Fails
// with usage.
Result<std::string> read_private_file(const std::string& path, const std::string& what);
// What a server shows by TLS, of two PEM files. Fails with usage, naming the file: not readable, not what it should be, or
// a key that everybody on this machine may read.
struct TlsFiles {
  std::string certificate, key;
};
Result<std::shared_ptr<net::TlsIdentity>> read_tls_identity(const TlsFiles& files);
// 64 hex digits of a public key, or a file with a public or private key. Fails with usage.
Result<PublicKey> read_public_key(const std::string& key);

}  // namespace ae::app
