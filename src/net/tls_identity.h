// TlsIdentity: a server's certificate and private key.
//
// TLS 1.2 or newer, no renegotiation, no compression, no client certificates. Threads: the loop's.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"

namespace ae::net {

class TlsIdentity {
 public:
  // PEM: the certificate, then its chain; a private key without a password. Fails with usage: what
  // is wrong with which of them; the message contains no byte of the key.
  static Result<std::shared_ptr<TlsIdentity>> make(const std::string& certificates,
                                                   const std::string& key);
  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  // New connections use the new identity; existing ones continue.
  void replace(TlsIdentity&& other);

  struct Impl;  // tls_identity_internal.h, for the sockets of this module
  Impl& impl() { return *impl_; }

 private:
  TlsIdentity();
  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::net
