// TlsIdentity::Impl: the OpenSSL context of an identity. Only for this module's .cc files.
#pragma once

#include <boost/asio/ssl.hpp>

#include "net/tls_identity.h"

namespace ae::net {

struct TlsIdentity::Impl {
  boost::asio::ssl::context context{boost::asio::ssl::context::tls_server};
};

}  // namespace ae::net
