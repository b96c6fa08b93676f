// TlsIdentity: what a server shows to be known by: its certificate, and the key that proves it.
//
// TLS 1.2 or newer, no renegotiation, no compression; a client's certificate is not asked for. Threads: the loop's.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"

namespace ae::net {

class TlsIdentity {
 public:
  // PEM: the certificate, then those that vouch for it; a private key without a password. Fails with usage: what is wrong
  // with which of them; no byte of the key is in the message.
  static Result<std::shared_ptr<TlsIdentity>> make(const std::string& certificates,
                                                   const std::string& key);
  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  // Connections from now on are shown this one; those that stand go on.
  void replace(TlsIdentity&& other);

  struct Impl;  // http_connection_internal.h, for the sockets of this module
  Impl& impl() { return *impl_; }

 private:
  TlsIdentity();
  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::net
