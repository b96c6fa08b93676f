// Secrets: values that tools and models need and that must not appear in any event, log, trace or
// error.
//
// An agents file names them (`secret:NAME`). They are resolved just before the call and held in a
// type that cannot be printed by accident. The output of programs and servers is scrubbed before it
// is kept. Threads: a SecretSource may be used from any thread; the rest are values and pure
// functions.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae::tools {

class SecretForms;

// A string that contains a secret. It cannot be streamed, formatted or converted to a Value; its
// bytes are wiped on destruction.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string value) : value_(std::move(value)) {}
  Secret(Secret&& o) noexcept : value_(std::move(o.value_)) { o.wipe(); }
  Secret(const Secret&) = default;
  Secret& operator=(Secret o) noexcept {
    value_.swap(o.value_);
    return *this;
  }
  ~Secret() { wipe(); }

  // The only access to the bytes. Call it only where they are passed to an external system.
  std::string_view reveal() const { return value_; }
  bool empty() const { return value_.empty(); }

  friend std::ostream& operator<<(std::ostream&, const Secret&) = delete;

 private:
  void wipe() noexcept;
  std::string value_;
};

// A secret to scrub: one that was used, or that this process knows.
struct UsedSecret {
  std::string name;
  Secret value;
};

class SecretSource {
 public:
  virtual ~SecretSource() = default;
  // Fails with secret_missing (the message lists the ways to set it), forbidden (the secrets file
  // is unsafe or unreadable), input_invalid (the name), payload_too_large.
  virtual Result<Secret> get(std::string_view name) = 0;
  // Adds the secrets of this process that `used` lacks: a tool's output may contain a secret of
  // another tool.
  virtual void add_known(std::vector<UsedSecret>& used) const { static_cast<void>(used); }
};

// Searched in this order: the environment variable NAME; the file that NAME_FILE names, without its
// last newline; a line NAME=value of the secrets file, which must belong to our user and have mode
// 0600 (or less). Values are literal, without quotes; an empty value counts as missing. Each is at
// most 64 KiB.
class EnvironmentSecrets final : public SecretSource {
 public:
  // An empty path: no secrets file.
  explicit EnvironmentSecrets(std::string secrets_file = {}) : file_(std::move(secrets_file)) {}
  Result<Secret> get(std::string_view name) override;
  void add_known(std::vector<UsedSecret>& used) const override;

 private:
  Result<Secret> find(std::string_view name) const;
  Result<Secret> from_secrets_file(std::string_view name) const;
  std::string file_;
  mutable std::mutex mutex_;
  std::vector<UsedSecret>
      known_;  // guarded by mutex_; returned secrets, the newest 8 values of each name
};

// Returns "secret:NAME" instead of the value, for previews of a request.
class SecretNames final : public SecretSource {
 public:
  Result<Secret> get(std::string_view name) override {
    return Secret(fmt::format("secret:{}", name));
  }
};

// Replaces each whole word `secret:NAME` in `text` by its value and adds the secret to `used`.
// REQUIRES: `text` is literal text of the agents file, never the result of an expression: models
// and other untrusted sources choose arguments, and could read any secret that they can name.
Result<Secret> replace_secrets(std::string_view text, SecretSource& source,
                               std::vector<UsedSecret>& used);

constexpr std::size_t kSecretHiddenMin = 4;  // bytes; shorter values are not scrubbed

// Replaces these values by `[secret NAME]`. Finds them plain, percent-encoded, as hex and as base64
// (also inside a longer base64; up to two of its characters remain), and each of these with any
// JSON escapes, also in JSON within JSON. Valid JSON stays valid. Values below kSecretHiddenMin are
// kept: hiding them would destroy the text.
std::string scrub(std::string_view text, const std::vector<UsedSecret>& used);
// The same for every string in a value, including keys.
Value scrub_value(const Value& value, const std::vector<UsedSecret>& used);
// The same for the *end* of a longer text. Also removes the rest of a value that the cut has split.
std::string scrub_tail(std::string_view tail, const std::vector<UsedSecret>& used);

// Incremental scrub. The concatenated output equals `scrub` of the whole text, except for thousands
// of backslashes in a row. Holds back only what may be the beginning of a value. Threads: one
// owner.
class ScrubbedStream {
 public:
  explicit ScrubbedStream(const std::vector<UsedSecret>& used);
  ~ScrubbedStream();
  ScrubbedStream(ScrubbedStream&&) noexcept;
  ScrubbedStream& operator=(ScrubbedStream&&) noexcept;

  // `text`: whole characters.
  std::string feed(std::string_view text);
  // The end of the text: returns what was held back.
  std::string end();

 private:
  std::unique_ptr<const SecretForms> forms_;
  std::string pending_;
};

}  // namespace ae::tools
