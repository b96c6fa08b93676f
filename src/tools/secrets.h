// Secrets: values that tools and models need and that no event, log, trace or error may ever show.
//
// An agents file names them (`secret:NAME`); they are looked up just before the call and live in a type that
// nothing prints by accident. What a program or a server says back is scrubbed before it is kept.
// Threads: a source may be asked from any thread; the rest are values and pure functions.
#pragma once

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

class UnescapedViews;
class ScrubTable;

// A text with a secret in it. No stream, format or Value takes it; its bytes are wiped when it goes.
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

  // The one way to its bytes. Use it in the line that hands them to the world, and nowhere else.
  std::string_view reveal() const { return value_; }
  bool empty() const { return value_.empty(); }

  friend std::ostream& operator<<(std::ostream&, const Secret&) = delete;

 private:
  void wipe() noexcept;
  std::string value_;
};

// A secret that has been used, or that is known to this process, for scrub.
struct UsedSecret {
  std::string name;
  Secret value;
};

class SecretSource {
 public:
  virtual ~SecretSource() = default;
  // Fails with secret_missing (the message says how to give it), or forbidden when others could read its file.
  virtual Result<Secret> get(std::string_view name) = 0;
  // Adds every secret of this process that is not in `used` yet: a tool may answer with one that another tool uses.
  virtual void add_known(std::vector<UsedSecret>& used) const { static_cast<void>(used); }
  // The table that finds `used` in a stream; nullptr when there is nothing to hide. It is shared because it is large: a
  // source may give all streams with the same secrets one table.
  virtual std::shared_ptr<const ScrubTable> scrub_table(const std::vector<UsedSecret>& used);
};

// In this order: the environment's NAME; the file that NAME_FILE names, without its last newline; a line NAME=value
// of the secrets file, which must be ours and mode 0600 (or less). Values are taken as they are, no quotes; empty is
// missing. Each at most 64 KiB.
class EnvironmentSecrets final : public SecretSource {
 public:
  // Without a path: no secrets file.
  explicit EnvironmentSecrets(std::string secrets_file = {}) : file_(std::move(secrets_file)) {}
  Result<Secret> get(std::string_view name) override;
  void add_known(std::vector<UsedSecret>& used) const override;
  std::shared_ptr<const ScrubTable> scrub_table(const std::vector<UsedSecret>& used) override;

 private:
  Result<Secret> find(std::string_view name) const;
  Result<Secret> from_secrets_file(std::string_view name) const;
  std::string file_;
  mutable std::mutex mutex_;
  std::vector<UsedSecret>
      known_;  // guarded by mutex_; all that was given, the newest values of each
  std::shared_ptr<const ScrubTable> newest_table_;  // guarded by mutex_
};

// Gives no secret, but what an agents file calls it: for those who read what would be sent.
class SecretNames final : public SecretSource {
 public:
  Result<Secret> get(std::string_view name) override {
    return Secret("secret:" + std::string(name));
  }
};

// `text` with every whole word `secret:NAME` replaced by its value; what was used is added to `used`.
// REQUIRES: `text` is literal text of the agents file. Never give it what an expression made: arguments come from
// models and strangers, who would get any secret they can name.
Result<Secret> replace_secrets(std::string_view text, SecretSource& source,
                               std::vector<UsedSecret>& used);

constexpr std::size_t kSecretHiddenMin = 4;  // bytes; shorter values are not taken out of anything

// `text` without these values, plain, percent-encoded (where needed, or every byte), hex or base64 (also inside a longer
// base64), and all that with the escapes of JSON, however they are used, also in JSON within JSON (unescaped_views.h);
// `[secret NAME]` stands instead, and JSON stays JSON. Values below kSecretHiddenMin are left: hiding them would only
// destroy the text.
std::string scrub(std::string_view text, const std::vector<UsedSecret>& used);
// The same for every string in a value; keys too.
Value scrub_value(const Value& value, const std::vector<UsedSecret>& used);
// The same for the *end* of a longer text: what its beginning holds of a value that was cut in two goes as well.
std::string scrub_tail(std::string_view tail, const std::vector<UsedSecret>& used);

// The same for a text that comes in pieces: what comes out, put together, is what `scrub` makes of the whole (unless a
// value follows itself without an end). It holds back what may be the beginning of a value, and not more. Threads: one owner.
class ScrubbedStream {
 public:
  // `table`: of SecretSource::scrub_table.
  explicit ScrubbedStream(std::shared_ptr<const ScrubTable> table);
  explicit ScrubbedStream(const std::vector<UsedSecret>& used);  // with a table of its own
  ~ScrubbedStream();
  ScrubbedStream(ScrubbedStream&&) noexcept;
  ScrubbedStream& operator=(ScrubbedStream&&) noexcept;

  // `text`: whole characters.
  std::string feed(std::string_view text);
  // There is no more: what was held back.
  std::string end();

 private:
  std::size_t first_incomplete(const UnescapedViews& views) const;
  std::size_t boundary_outside_matches(const UnescapedViews& views, std::size_t cut) const;
  std::shared_ptr<const ScrubTable> table_;  // null: there is nothing to hide
  std::string pending_;
};

}  // namespace ae::tools
