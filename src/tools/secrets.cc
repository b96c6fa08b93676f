// Resolving secrets, and scrubbing them from what is stored or shown.
#include "tools/secrets.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>

#include "base/hash.h"
#include "base/utf8.h"

namespace ae::tools {
namespace {

constexpr std::size_t kSecretMax = 64u << 10;      // bytes of one secret
constexpr std::size_t kSecretsFileMax = 1u << 20;  // bytes of the secrets file
// A stream holds back this much at most: so many bytes, and so many for each byte of the longest
// form; `\\\\u0041` is one.
constexpr std::size_t kPendingMax = 1u << 10, kBytesPerByteMax = 48;
constexpr std::size_t kValuesPerSecretMax = 8;  // kept per name when a secret changes
constexpr std::string_view kMarker = "secret:";

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

class File {
 public:
  explicit File(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

  // The whole content; nullopt if it cannot be read or is larger than `most` bytes.
  std::optional<std::string> read_all(std::size_t most) const {
    std::string text(most + 1, '\0');
    std::size_t have = 0;
    while (have < text.size()) {
      const ssize_t n = ::read(fd_, text.data() + have, text.size() - have);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return std::nullopt;
      if (n == 0) break;
      have += static_cast<std::size_t>(n);
    }
    if (have > most) return std::nullopt;
    std::string exact = text.substr(0, have);
    ::explicit_bzero(text.data(), text.size());
    return exact;
  }

 private:
  int fd_;
};

std::unexpected<Error> missing(std::string_view name, const std::string& file) {
  const std::string secrets = file.empty() ? "a secrets file" : "the secrets file " + file;
  return fail(Code::secret_missing,
              "the secret {0} is missing: set the environment variable {0}, or {0}_FILE to the "
              "path of a file that holds it, or write the line {0}=… into {1} (mode 0600)",
              name, secrets);
}

// ---- the forms in which a value is found

constexpr std::string_view kUpperHex = "0123456789ABCDEF", kLowerHex = "0123456789abcdef";

std::string hex_encoded(std::string_view value, std::string_view digits) {
  std::string out;
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    out += digits[byte >> 4];
    out += digits[byte & 0xF];
  }
  return out;
}

std::string percent_encoded(std::string_view value, std::string_view digits) {
  std::string out;
  for (const char c : value) {
    if (is_word(c) || c == '-' || c == '.' || c == '~') {
      out += c;
      continue;
    }
    out += '%';
    out += hex_encoded({&c, 1}, digits);
  }
  return out;
}

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::string_view kBase64Url =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// The base64 characters that depend only on `value` when `before` bytes (mod 3) precede it.
std::string base64_core(std::string_view value, std::size_t before, std::string_view alphabet) {
  const std::size_t begin = before * 8, end = begin + value.size() * 8;
  std::string out;
  for (std::size_t bit = (begin + 5) / 6 * 6; bit + 6 <= end; bit += 6) {
    unsigned index = 0;
    for (std::size_t b = bit - begin; b < bit - begin + 6; ++b) {
      index = index << 1 | (static_cast<unsigned char>(value[b / 8]) >> (7 - b % 8) & 1u);
    }
    out += alphabet[index];
  }
  return out;
}

enum class TextEnd : std::uint8_t { known, unknown };  // unknown: more text may follow

// A text without JSON escapes, at whatever depth of JSON within JSON they are: `\uXXXX` after any
// number of backslashes is its character, other backslashes are left out, and a line break is the
// letter of its escape. So all spellings of a value have one text. Borrows nothing.
class Unescaped {
 public:
  Unescaped(std::string_view source, TextEnd source_end);

  const std::string& text() const { return text_; }
  // The position in the source at which the spelling of this byte begins. Of the size of the text:
  // the end of what could be read, which is before an escape that more text may complete.
  std::size_t source_at(std::size_t at) const {
    const auto next = std::ranges::upper_bound(jumps_, at, {}, &Jump::at);
    if (next == jumps_.begin()) return at;
    return std::prev(next)->source + (at - std::prev(next)->at);
  }

 private:
  struct Jump {
    std::size_t at, source;
  };
  // The number of a `uXXXX`.
  struct Unit {
    std::uint32_t number = 0;
    std::size_t bytes = 0;       // 0: something else
    bool is_incomplete = false;  // the text ends within it
  };
  static Unit unit_at(std::string_view text);
  // Also of a surrogate pair.
  static Unit character_at(std::string_view text);
  void add(std::size_t begin, std::string_view spelled, std::size_t end) {
    jumps_.push_back({text_.size(), begin});
    text_ += spelled;
    jumps_.push_back({text_.size(), end});
  }

  std::string text_;
  std::vector<Jump> jumps_;
};

Unescaped::Unit Unescaped::unit_at(std::string_view text) {
  constexpr std::size_t kSize = 5;
  Unit unit;
  for (std::size_t i = 0; i < kSize; ++i) {
    if (i == text.size()) return {.is_incomplete = true};
    const char lower = static_cast<char>(text[i] | 0x20);
    if (i == 0 && text[i] == 'u') continue;
    if (i == 0) return {};
    if (text[i] >= '0' && text[i] <= '9') {
      unit.number = unit.number << 4 | static_cast<std::uint32_t>(text[i] - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      unit.number = unit.number << 4 | static_cast<std::uint32_t>(lower - 'a' + 10);
    } else {
      return {};
    }
  }
  unit.bytes = kSize;
  return unit;
}

Unescaped::Unit Unescaped::character_at(std::string_view text) {
  const Unit first = unit_at(text);
  if (first.bytes == 0 || first.number < 0xD800 || first.number > 0xDFFF) return first;
  if (first.number > 0xDBFF) return {};  // a low surrogate without a high one
  const std::string_view rest = text.substr(first.bytes);
  const std::size_t slashes = std::min(rest.find_first_not_of('\\'), rest.size());
  if (slashes == rest.size()) return {.is_incomplete = true};
  const Unit second = slashes == 0 ? Unit() : unit_at(rest.substr(slashes));
  if (second.is_incomplete) return second;
  if (second.bytes == 0 || second.number < 0xDC00 || second.number > 0xDFFF) return {};
  return {.number = 0x10000 + ((first.number - 0xD800) << 10) + (second.number - 0xDC00),
          .bytes = first.bytes + slashes + second.bytes};
}

char letter_of_escape(char c) {
  constexpr std::string_view kEscaped = "\b\f\n\r\t", kLetters = "bfnrt";
  const std::size_t at = kEscaped.find(c);
  return at == kEscaped.npos ? c : kLetters[at];
}

Unescaped::Unescaped(std::string_view source, TextEnd source_end) {
  text_.reserve(source.size());
  for (std::size_t at = 0; at < source.size();) {
    if (source[at] != '\\') {
      text_ += letter_of_escape(source[at++]);
      continue;
    }
    const std::size_t begin = at;
    at = std::min(source.find_first_not_of('\\', begin), source.size());
    const Unit unit =
        at == source.size() ? Unit{.is_incomplete = true} : character_at(source.substr(at));
    if (unit.is_incomplete && source_end == TextEnd::unknown) return;
    if (unit.bytes > 0) {
      std::string character;
      append_utf8(unit.number, character);
      if (character.size() == 1) character[0] = letter_of_escape(character[0]);
      at += unit.bytes;
      // A backslash that is itself an escape is left out, too.
      add(begin, character == "\\" ? "" : character, at);
    } else if (at == source.size()) {
      add(begin, "\\", at);
    } else {
      const char c = letter_of_escape(source[at]);
      add(begin, std::string_view(&c, 1), ++at);
    }
  }
}

struct Form {
  Secret text;  // unescaped
  std::string name;
};

}  // namespace

// The forms of a set of secrets, for searching them. Immutable; threads: any.
class SecretForms {
 public:
  explicit SecretForms(const std::vector<UsedSecret>& used);

  bool empty() const { return longest_ == nullptr; }
  // REQUIRES: not empty.
  const Form& longest() const { return *longest_; }
  // Replaces the values in `text`, and gives the part of it that was read: all of it if its end is
  // known, otherwise the part before what may be the beginning of a value.
  struct Clean {
    std::string text;
    std::size_t bytes_read = 0;
  };
  Clean scrub(std::string_view text, TextEnd text_end) const;
  Value scrub(const Value& value) const;
  // The size of the longest end of a form, not a whole one, with which this unescaped text begins.
  std::size_t end_of_form_at_begin(std::string_view text) const;

 private:
  const std::vector<Form>& beginning_with(char c) const {
    return forms_[static_cast<unsigned char>(c)];
  }
  // By their first byte, longest first.
  std::array<std::vector<Form>, 256> forms_;
  const Form* longest_ = nullptr;
};

SecretForms::SecretForms(const std::vector<UsedSecret>& used) {
  for (const UsedSecret& one : used) {
    const std::string_view value = one.value.reveal();
    if (value.size() < kSecretHiddenMin) continue;
    Unescaped plain(value, TextEnd::known);
    std::string unescaped = plain.text();
    while (unescaped.ends_with('\\')) unescaped.pop_back();
    std::vector<std::string> texts = {std::move(unescaped)};
    for (const std::string_view digits : {kUpperHex, kLowerHex}) {
      texts.push_back(percent_encoded(value, digits));
      texts.push_back(hex_encoded(value, digits));
    }
    for (const std::string_view alphabet : {kBase64, kBase64Url}) {
      for (const std::size_t before : {0u, 1u, 2u}) {
        texts.push_back(base64_core(value, before, alphabet));
      }
    }
    std::ranges::sort(texts);
    texts.erase(std::ranges::unique(texts).begin(), texts.end());
    for (std::string& text : texts) {
      if (text.size() < kSecretHiddenMin) continue;
      auto& forms = forms_[static_cast<unsigned char>(text.front())];
      forms.push_back({Secret(std::move(text)), one.name});
    }
  }
  for (auto& forms : forms_) {
    std::ranges::sort(forms, [](const Form& a, const Form& b) {
      const std::string_view left = a.text.reveal(), right = b.text.reveal();
      if (left.size() != right.size()) return left.size() > right.size();
      return std::tie(left, a.name) < std::tie(right, b.name);
    });
    if (!forms.empty() &&
        (empty() || forms.front().text.reveal().size() > longest_->text.reveal().size())) {
      longest_ = &forms.front();
    }
  }
}

namespace {

std::string placeholder_for(const Form& form) { return fmt::format("[secret {}]", form.name); }

}  // namespace

SecretForms::Clean SecretForms::scrub(std::string_view text, TextEnd text_end) const {
  const Unescaped unescaped(text, text_end);
  const std::string_view all = unescaped.text();
  Clean clean;
  std::size_t at = 0;
  const auto keep_to = [&](std::size_t end) {
    clean.text += text.substr(clean.bytes_read, end - clean.bytes_read);
    clean.bytes_read = end;
  };
  while (at < all.size()) {
    const std::string_view rest = all.substr(at);
    const Form* match = nullptr;
    bool may_continue = false;  // a longer value than the match may begin here
    for (const Form& form : beginning_with(rest.front())) {
      const std::string_view value = form.text.reveal();
      if (rest.starts_with(value)) {
        match = &form;
        break;
      }
      may_continue = may_continue || value.starts_with(rest);
    }
    const bool in_character = (static_cast<unsigned char>(rest.front()) & 0xC0) == 0x80;
    if (may_continue && text_end == TextEnd::unknown && !in_character) break;
    if (match == nullptr) {
      ++at;
      continue;
    }
    keep_to(unescaped.source_at(at));
    clean.text += placeholder_for(*match);
    at += match->text.reveal().size();
    clean.bytes_read = unescaped.source_at(at);
  }
  keep_to(unescaped.source_at(at));
  return clean;
}

Value SecretForms::scrub(const Value& value) const {
  switch (value.kind()) {
    case Value::Kind::string: {
      std::string clean = scrub(value.as_string(), TextEnd::known).text;
      return clean == value.as_string() ? value : Value(std::move(clean));
    }
    case Value::Kind::array: {
      std::vector<Value> items;
      items.reserve(value.size());
      for (const Value& item : value.items()) items.push_back(scrub(item));
      return Value::array(std::move(items));
    }
    case Value::Kind::object: {
      std::map<std::string, Value> clean;  // scrubbing may make two keys equal
      for (const auto& [key, member] : value.members()) {
        clean.insert_or_assign(scrub(key, TextEnd::known).text, scrub(member));
      }
      return Value::object(std::vector<Member>(clean.begin(), clean.end()));
    }
    default:
      return value;
  }
}

std::size_t SecretForms::end_of_form_at_begin(std::string_view text) const {
  std::size_t longest = 0;
  for (const auto& forms : forms_) {
    for (const Form& form : forms) {
      const std::string_view value = form.text.reveal();
      std::size_t begin = 1;
      while (begin < value.size() && !text.starts_with(value.substr(begin))) ++begin;
      longest = std::max(longest, value.size() - begin);
    }
  }
  return longest;
}

void Secret::wipe() noexcept {
  value_.resize(value_.capacity());  // a moved-from string may leave bytes beyond its size
  ::explicit_bzero(value_.data(), value_.size());
  value_.clear();
}

Result<Secret> EnvironmentSecrets::get(std::string_view name) {
  auto secret = find(name);
  if (!secret) return secret;
  const std::lock_guard lock(mutex_);
  const auto is_same = [&](const UsedSecret& one) {
    return one.name == name && one.value.reveal() == secret->reveal();
  };
  if (std::ranges::any_of(known_, is_same)) return secret;
  const auto same_name = [&](const UsedSecret& one) { return one.name == name; };
  if (std::ranges::count_if(known_, same_name) >=
      static_cast<std::ptrdiff_t>(kValuesPerSecretMax)) {
    known_.erase(std::ranges::find_if(known_, same_name));
  }
  known_.push_back({std::string(name), *secret});
  return secret;
}

void EnvironmentSecrets::add_known(std::vector<UsedSecret>& used) const {
  const std::lock_guard lock(mutex_);
  for (const UsedSecret& one : known_) {
    const auto is_same = [&](const UsedSecret& other) {
      return other.name == one.name && other.value.reveal() == one.value.reveal();
    };
    if (std::ranges::none_of(used, is_same)) used.push_back(one);
  }
}

Result<Secret> EnvironmentSecrets::find(std::string_view name) const {
  const bool is_name = !name.empty() && name.size() <= 256 && std::ranges::all_of(name, is_word) &&
                       (name[0] < '0' || name[0] > '9');
  if (!is_name) {
    return fail(Code::input_invalid,
                "a secret's name is made of letters, digits and _, as an environment variable's");
  }
  const std::string variable(name);
  if (const char* value = std::getenv(variable.c_str()); value != nullptr && *value != '\0') {
    if (std::strlen(value) > kSecretMax) {
      return fail(Code::payload_too_large, "the secret {} is longer than 64 KiB", variable);
    }
    return Secret(value);
  }
  const char* path = std::getenv((variable + "_FILE").c_str());
  if (path == nullptr || *path == '\0') return from_secrets_file(name);

  const File file(path);
  if (file.fd() < 0) {
    return fail(Code::secret_missing,
                "the secret {0} should be in the file {1} ({0}_FILE), which cannot be opened: {2}",
                variable, path, std::strerror(errno));
  }
  std::optional<std::string> text = file.read_all(kSecretMax);
  if (!text) {
    return fail(
        Code::secret_missing,
        "the secret {} should be in the file {}, which cannot be read or is longer than 64 KiB",
        variable, path);
  }
  if (text->ends_with('\n')) text->pop_back();
  if (text->ends_with('\r')) text->pop_back();
  if (text->empty()) return missing(name, file_);
  return Secret(std::move(*text));
}

Result<Secret> EnvironmentSecrets::from_secrets_file(std::string_view name) const {
  if (file_.empty()) return missing(name, file_);
  const File file(file_);
  if (file.fd() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return missing(name, file_);
    return fail(Code::forbidden, "the secrets file {} cannot be opened: {}", file_,
                std::strerror(errno));
  }
  struct stat status{};
  if (::fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail(Code::forbidden, "the secrets file {} is not a regular file", file_);
  }
  if (status.st_uid != ::geteuid()) {
    return fail(Code::forbidden,
                "the secrets file {} belongs to another user: chown "
                "it to the user that runs this process",
                file_);
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return fail(Code::forbidden, "the secrets file {0} is accessible to other users: chmod 600 {0}",
                file_);
  }
  std::optional<std::string> text = file.read_all(kSecretsFileMax);
  if (!text)
    return fail(Code::forbidden, "the secrets file {} cannot be read or is longer than 1 MiB",
                file_);
  const Secret whole(std::move(*text));  // wiped on destruction
  std::string_view rest = whole.reveal();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == '=') {
      const std::string_view value = line.substr(name.size() + 1);
      if (value.empty()) break;
      if (value.size() > kSecretMax) {
        return fail(Code::payload_too_large, "the secret {} is longer than 64 KiB", name);
      }
      return Secret(std::string(value));
    }
  }
  return missing(name, file_);
}

Result<Secret> replace_secrets(std::string_view text, SecretSource& source,
                               std::vector<UsedSecret>& used) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = 0; (at = text.find(kMarker, at)) != std::string_view::npos;) {
    std::size_t end = at + kMarker.size();
    while (end < text.size() && is_word(text[end])) ++end;
    const std::string_view name = text.substr(at + kMarker.size(), end - at - kMarker.size());
    if (name.empty() || (at > 0 && is_word(text[at - 1]))) {
      at = end;
      continue;
    }
    auto secret = source.get(name);
    if (!secret) {
      ::explicit_bzero(out.data(), out.size());
      return std::unexpected(std::move(secret).error());
    }
    out += text.substr(done, at - done);
    out += secret->reveal();
    used.push_back({std::string(name), *std::move(secret)});
    at = done = end;
  }
  out += text.substr(done);
  Secret replaced(out);
  ::explicit_bzero(out.data(), out.size());
  return replaced;
}

std::string scrub(std::string_view text, const std::vector<UsedSecret>& used) {
  if (used.empty()) return std::string(text);
  return SecretForms(used).scrub(text, TextEnd::known).text;
}

Value scrub_value(const Value& value, const std::vector<UsedSecret>& used) {
  if (used.empty()) return value;
  return SecretForms(used).scrub(value);
}

std::string scrub_tail(std::string_view tail, const std::vector<UsedSecret>& used) {
  if (used.empty()) return std::string(tail);
  const SecretForms forms(used);
  const Unescaped unescaped(tail, TextEnd::known);
  const std::size_t cut = unescaped.source_at(forms.end_of_form_at_begin(unescaped.text()));
  return forms.scrub(tail.substr(cut), TextEnd::known).text;
}

ScrubbedStream::ScrubbedStream(const std::vector<UsedSecret>& used)
    : forms_(std::make_unique<SecretForms>(used)) {}
ScrubbedStream::~ScrubbedStream() { ::explicit_bzero(pending_.data(), pending_.size()); }
ScrubbedStream::ScrubbedStream(ScrubbedStream&&) noexcept = default;
ScrubbedStream& ScrubbedStream::operator=(ScrubbedStream&&) noexcept = default;

std::string ScrubbedStream::feed(std::string_view text) {
  if (forms_->empty()) return std::string(text);
  pending_ += text;
  auto [clean, bytes_read] = forms_->scrub(pending_, TextEnd::unknown);
  const Form& longest = forms_->longest();
  if (pending_.size() - bytes_read >
      kPendingMax + kBytesPerByteMax * longest.text.reveal().size()) {
    // Backslashes without an end: replaced as a whole.
    clean += placeholder_for(longest);
    bytes_read = pending_.size();
  }
  pending_.erase(0, bytes_read);
  return clean;
}

std::string ScrubbedStream::end() {
  if (forms_->empty()) return {};
  std::string clean = forms_->scrub(pending_, TextEnd::known).text;
  ::explicit_bzero(pending_.data(), pending_.size());
  pending_.clear();
  return clean;
}

}  // namespace ae::tools
