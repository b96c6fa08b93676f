// Key files: read keys for signing, for verification and for TLS.
//
// Threads: any; nothing is cached.
#pragma once

#include <string>

#include "base/error.h"
#include "base/sign.h"
#include "net/tls_identity.h"

namespace ae::app {

// Reads a PEM file with an Ed25519 private key. Fails with usage: not readable, not such a key, or
// accessible to other users (the file must have mode 0600 or less).
Result<SigningKey> read_signing_key(const std::string& path);
// Reads a file that only its owner can access, without surrounding line breaks. `what`: its name in
// messages. Fails with usage.
Result<std::string> read_private_file(const std::string& path, const std::string& what);
// Reads a TLS identity from two PEM files. Fails with usage, naming the file: not readable, wrong
// content, or a key that every user of this machine can read.
struct TlsFiles {
  std::string certificate, key;
};
Result<std::shared_ptr<net::TlsIdentity>> read_tls_identity(const TlsFiles& files);
// Parses 64 hex digits of a public key, or reads a file with a public or private key. Fails with
// usage.
Result<PublicKey> read_public_key(const std::string& key);

}  // namespace ae::app
