// TlsIdentity: a certificate and its key, stored in an OpenSSL context.
#include "net/tls_identity.h"

#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <utility>

#include "net/tls_identity_internal.h"

namespace ae::net {
namespace {

std::unexpected<Error> bad(const char* what, unsigned long why) {
  ERR_clear_error();
  const char* const reason = why == 0 ? nullptr : ERR_reason_error_string(why);
  return fail(Code::usage, reason == nullptr ? what : fmt::format("{} ({})", what, reason));
}

// Asio takes the error code from OpenSSL's queue.
unsigned long why(const boost::system::error_code& error) {
  return static_cast<unsigned long>(error.value());
}

}  // namespace

TlsIdentity::TlsIdentity() : impl_(std::make_unique<Impl>()) {}
TlsIdentity::~TlsIdentity() = default;

Result<std::shared_ptr<TlsIdentity>> TlsIdentity::make(const std::string& certificates,
                                                       const std::string& key) {
  namespace ssl = boost::asio::ssl;
  std::shared_ptr<TlsIdentity> made(new TlsIdentity());
  ssl::context& context = made->impl_->context;
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.native_handle(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  ERR_clear_error();
  boost::system::error_code error;
  context.use_certificate_chain(boost::asio::buffer(certificates), error);
  if (error) return bad("it holds no certificate in PEM format", why(error));
  // Without the callback, OpenSSL would prompt for a password on the terminal.
  context.set_password_callback(
      [](std::size_t, ssl::context::password_purpose) { return std::string(); }, error);
  context.use_private_key(boost::asio::buffer(key), ssl::context::pem, error);
  if (!error && SSL_CTX_check_private_key(context.native_handle()) == 1) return made;
  const unsigned long reason = error ? why(error) : ERR_peek_last_error();
  return bad(ERR_GET_REASON(reason) == X509_R_KEY_VALUES_MISMATCH
                 ? "the key does not match the certificate"
                 : "the key is not a private key in PEM format without a password",
             reason);
}

void TlsIdentity::replace(TlsIdentity&& other) { impl_ = std::move(other.impl_); }

}  // namespace ae::net
