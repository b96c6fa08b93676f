#include "tools/secrets.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <type_traits>

#include "base/hash.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::tools {
namespace {

// A temporary file.
struct ScratchFile {
  std::string path = "/tmp/aetheris-secrets-XXXXXX";
  ScratchFile(std::string_view text, mode_t mode) {
    const int fd = ::mkstemp(path.data());
    EXPECT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    ::fchmod(fd, mode);
    ::close(fd);
  }
  ~ScratchFile() { ::unlink(path.c_str()); }
};

struct ScopedVariable {
  std::string name;
  ScopedVariable(std::string n, const std::string& value) : name(std::move(n)) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~ScopedVariable() { ::unsetenv(name.c_str()); }
};

class TableSecrets final : public SecretSource {
 public:
  std::map<std::string, std::string, std::less<>> values;
  Result<Secret> get(std::string_view name) override {
    const auto found = values.find(name);
    if (found == values.end()) return fail(Code::secret_missing, std::string(name));
    return Secret(found->second);
  }
};

std::string secret_or_error(SecretSource& source, std::string_view name) {
  auto secret = source.get(name);
  return secret ? std::string(secret->reveal()) : "! " + secret.error().message;
}

template <class T>
concept Printable = requires(std::ostream& out, const T& t) { out << t; };

AE_TEST("secrets/a Secret cannot be printed or converted to a string or value") {
  static_assert(!Printable<Secret>);
  static_assert(!std::is_convertible_v<Secret, std::string>);
  static_assert(!std::is_constructible_v<Value, Secret>);
}

AE_TEST("secrets/sources are the environment, then the _FILE variable, then the secrets file") {
  const ScratchFile lines("# a comment\nAE_T_ONE=from=lines \nAE_T_TWO=2\n", 0600);
  const ScratchFile one("from file\n\n", 0644);
  EnvironmentSecrets source(lines.path);
  EXPECT_EQ(secret_or_error(source, "AE_T_ONE"), "from=lines ");
  const ScopedVariable file("AE_T_ONE_FILE", one.path);
  EXPECT_EQ(secret_or_error(source, "AE_T_ONE"), "from file\n");
  const ScopedVariable variable("AE_T_ONE", "from environment");
  EXPECT_EQ(secret_or_error(source, "AE_T_ONE"), "from environment");
}

AE_TEST("secrets/a missing secret is reported with its name and the three sources") {
  EnvironmentSecrets source("/nowhere/secrets");
  auto secret = source.get("AE_T_NONE");
  ASSERT_FALSE(secret);
  EXPECT_EQ(secret.error().code, Code::secret_missing);
  for (const char* word : {"variable AE_T_NONE,", "AE_T_NONE_FILE", "/nowhere/secrets"}) {
    EXPECT_NE(secret.error().message.find(word), std::string::npos) << secret.error().message;
  }
}

AE_TEST("secrets/an empty value is treated as missing") {
  const ScratchFile lines("AE_T_EMPTY=\n", 0600);
  EnvironmentSecrets source(lines.path);
  const ScopedVariable variable("AE_T_EMPTY", "");
  auto secret = source.get("AE_T_EMPTY");
  ASSERT_FALSE(secret);
  EXPECT_EQ(secret.error().code, Code::secret_missing);
}

AE_TEST("secrets/a secrets file that is accessible to others is rejected") {
  for (const mode_t mode : {0640U, 0604U, 0666U, 0610U}) {
    const ScratchFile lines("AE_T_ONE=1\n", mode);
    EnvironmentSecrets source(lines.path);
    auto secret = source.get("AE_T_ONE");
    ASSERT_FALSE(secret) << mode;
    EXPECT_EQ(secret.error().code, Code::forbidden);
    EXPECT_NE(secret.error().message.find("chmod 600"), std::string::npos);
  }
}

AE_TEST("secrets/a secrets file of another owner is rejected") {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can change the owner of a file";
  const ScratchFile lines("AE_T_ONE=1\n", 0600);
  ASSERT_EQ(::chown(lines.path.c_str(), 65534, 65534), 0);
  EnvironmentSecrets source(lines.path);
  auto secret = source.get("AE_T_ONE");
  ASSERT_FALSE(secret);
  EXPECT_EQ(secret.error().code, Code::forbidden);
}

AE_TEST("secrets/an invalid name is rejected before any source is read") {
  EnvironmentSecrets source("/nowhere/secrets");
  for (const char* name : {"", "1A", "A-B", "../x", "A=B", "A\n"}) {
    auto secret = source.get(name);
    ASSERT_FALSE(secret) << name;
    EXPECT_EQ(secret.error().code, Code::input_invalid);
  }
}

AE_TEST("secrets/only whole-word references are replaced") {
  TableSecrets table;
  table.values = {{"TOKEN", "t0k3n"}, {"TOKEN_2", "other"}};
  std::vector<UsedSecret> used;
  const auto text = [&](std::string_view from) {
    auto secret = replace_secrets(from, table, used);
    return secret ? std::string(secret->reveal()) : "! " + secret.error().message;
  };
  EXPECT_EQ(text("Bearer secret:TOKEN"), "Bearer t0k3n");
  EXPECT_EQ(text("secret:TOKEN_2,secret:TOKEN."), "other,t0k3n.");
  EXPECT_EQ(text("mysecret:TOKEN secret: secret:"), "mysecret:TOKEN secret: secret:");
  EXPECT_EQ(text("no secret"), "no secret");
  EXPECT_EQ(used.size(), 3u);
  EXPECT_EQ(text("a secret:ABSENT"), "! ABSENT");
}

AE_TEST("secrets/a value is scrubbed from text in plain, URL, JSON, hex and base64 encoding") {
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret("s3cr&t/\"+")});
  EXPECT_EQ(scrub("got s3cr&t/\"+ there", used), "got [secret KEY] there");
  EXPECT_EQ(scrub("q=s3cr%26t%2F%22%2B", used), "q=[secret KEY]");
  EXPECT_EQ(scrub(R"({"k":"s3cr&t/\"+"})", used), R"({"k":"[secret KEY]"})");
  EXPECT_EQ(scrub("q=s3cr%26t%2f%22%2b", used), "q=[secret KEY]");
  EXPECT_EQ(scrub("7333637226742f222b", used), "[secret KEY]");
  EXPECT_EQ(scrub("7333637226742F222B", used), "[secret KEY]");
  // base64 of "me:s3cr&t/\"+": the characters that encode the end of the value are removed, those
  // before the value are not.
  EXPECT_EQ(scrub("Basic bWU6czNjciZ0LyIr", used), "Basic bWU6[secret KEY]");
  EXPECT_EQ(scrub("Basic bTpzM2NyJnQvIis=", used), "Basic bTp[secret KEY]s=");
  const std::vector<UsedSecret> tildes{{"T", Secret("~~~???")}};
  EXPECT_EQ(scrub("fn5+Pz8/ fn5-Pz8_", tildes), "[secret T] [secret T]");
}

AE_TEST("secrets/each encoding of a value is scrubbed, with any surrounding bytes") {
  struct Row {
    const char *how, *text, *clean;
  };
  // Encodings of the value `Zq7-x`.
  const Row rows[] = {
      {"hex", "5a71372d78", "[secret KEY]"},
      {"base64 alone", "WnE3LXg=", "[secret KEY]g="},
      {"base64 with 0xFF behind", "WnE3LXj/", "[secret KEY]j/"},
      {"base64 behind one byte", "YVpxNy14", "YV[secret KEY]"},
      {"base64 behind two bytes", "YWFacTcteA==", "YWF[secret KEY]A=="},
      {"base64 in JSON in JSON", R"("\"WnE3LXg=\"")", R"("\"[secret KEY]g=\"")"},
      {"in the middle of words", "xxZq7-xxx", "xx[secret KEY]xx"},
  };
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret("Zq7-x")});
  for (const Row& row : rows) {
    EXPECT_EQ(scrub(row.text, used), row.clean) << row.how;
    ScrubbedStream stream(used);
    std::string whole;
    for (const char c : std::string_view(row.text)) whole += stream.feed(std::string_view(&c, 1));
    EXPECT_EQ(whole + stream.end(), row.clean) << row.how << ", byte by byte";
  }
  EXPECT_EQ(scrub("Zq7-y 5a71372d79", used), "Zq7-y 5a71372d79") << "another value is unchanged";
}

AE_TEST("secrets/every secret that the process has read is scrubbed") {
  ::setenv("SCRUB_A", "alpha-value", 1);
  ::setenv("SCRUB_B", "beta-value", 1);
  EnvironmentSecrets source;
  std::vector<UsedSecret> used;
  ASSERT_TRUE(replace_secrets("secret:SCRUB_A", source, used));
  EXPECT_EQ(scrub("alpha-value beta-value", used), "[secret SCRUB_A] beta-value");
  ASSERT_TRUE(source.get("SCRUB_B"));
  source.add_known(used);
  source.add_known(used);
  EXPECT_EQ(used.size(), 2u);
  EXPECT_EQ(scrub("alpha-value beta-value", used), "[secret SCRUB_A] [secret SCRUB_B]");
  ::setenv("SCRUB_B", "gamma-value", 1);
  ASSERT_TRUE(source.get("SCRUB_B"));
  std::vector<UsedSecret> all;
  source.add_known(all);
  EXPECT_EQ(scrub("beta-value gamma-value", all), "[secret SCRUB_B] [secret SCRUB_B]")
      << "the previous value is still scrubbed";
  ::unsetenv("SCRUB_A");
  ::unsetenv("SCRUB_B");
}

AE_TEST("secrets/short values are not scrubbed") {
  std::vector<UsedSecret> used;
  used.push_back({"PIN", Secret("123")});
  EXPECT_EQ(scrub("123 1234", used), "123 1234");
}

AE_TEST("secrets/a value is scrubbed from nested values and keys") {
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret("hunter22")});
  const auto value = parse_json(R"({"a":["hunter22",1,{"xhunter22":null}],"b":"ok"})");
  EXPECT_EQ(canonical(scrub_value(*value, used)),
            R"({"a":["[secret KEY]",1,{"x[secret KEY]":null}],"b":"ok"})");
}

AE_TEST("secrets/a value in JSON text is scrubbed in every escaped form") {
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret("s3cr&t/\"+")});
  const auto scrubbed = [&](std::string_view text) {
    return scrub_value(Value(std::string(text)), used).as_string();
  };
  EXPECT_EQ(scrubbed(R"({"k":"\u00733cr&t\/\"+"})"), R"({"k":"[secret KEY]"})");
  EXPECT_EQ(scrubbed(R"( [{"s3cr&t\/\"+": 1}])"), R"( [{"[secret KEY]": 1}])");
  EXPECT_EQ(scrubbed(R"("s3cr&t\/\u0022+")"), R"("[secret KEY]")");
  // JSON in JSON in JSON, and truncated JSON.
  EXPECT_EQ(scrubbed(R"({"k":"{\"k\":\"\\u00733cr&t/\\\"+\"}"})"),
            R"({"k":"{\"k\":\"[secret KEY]\"}"})");
  EXPECT_EQ(scrubbed(R"({"k":"they said \"s3cr&t/\\\"+\"", "l)"),
            R"({"k":"they said \"[secret KEY]\"", "l)");
  // A text without a secret is unchanged, byte for byte.
  for (const char* text :
       {R"({ "k" : "a\/b" })", R"({"k":"a\/b")", R"(a \ b)", R"({"n":1e2,"k":"\\"})"}) {
    EXPECT_EQ(scrubbed(text), text);
  }
}

// The text as a JSON string with every character as \u00XX.
std::string as_unicode_escapes(std::string_view text) {
  std::string out;
  for (const char c : text) out += "\\u00" + to_hex(std::string_view(&c, 1));
  return out;
}

std::string json_escaped(std::string_view text) {
  const std::string quoted = canonical(Value(std::string(text)));
  return quoted.substr(1, quoted.size() - 2);
}

// Ways to write the value in JSON, and in JSON inside a JSON string.
std::vector<std::string> json_encodings(std::string_view value) {
  const std::string numbers = as_unicode_escapes(value);
  std::string slashed = json_escaped(value), upper = numbers;
  for (std::size_t at = 0; (at = slashed.find('/', at)) != slashed.npos; at += 2) {
    slashed.insert(at, 1, '\\');
  }
  std::ranges::transform(upper, upper.begin(), [](char c) {
    return c >= 'a' && c <= 'f' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  const std::string half = numbers.substr(0, 18) + slashed.substr(3);
  return {numbers,
          upper,
          slashed,
          half,
          json_escaped(numbers),
          json_escaped(slashed),
          json_escaped(half),
          json_escaped(json_escaped(json_escaped(half)))};
}

AE_TEST("secrets/an escaped value is scrubbed, and JSON stays valid") {
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret("s3cr&t/\"+")});
  for (const std::string& one : json_encodings("s3cr&t/\"+")) {
    for (const char* beside : {"", "x", "\\n", "\\\"", "u0073"}) {
      const std::string around = beside;
      const std::string clean = scrub(around + one + around, used);
      EXPECT_EQ(clean, fmt::format("{0}[secret KEY]{0}", around)) << one;
      const std::string json = R"( {"a": 1, "k": ")" + around + one + R"("})";
      EXPECT_TRUE(parse_json(scrub(json, used))) << json;
      EXPECT_EQ(scrub(json, used), R"( {"a": 1, "k": ")" + around + R"([secret KEY]"})");
    }
  }
  used.push_back({"NAME", Secret("häß😀n")});
  EXPECT_EQ(scrub(R"(\n h\u00e4\u00DF\ud83d\uDE00n \ud83d\ude00)", used),
            R"(\n [secret NAME] \ud83d\ude00)");
  // In base64 with escaped slashes, and in text that is not JSON.
  EXPECT_EQ(scrub(R"({"k":"Basic \/\/bWU6czNjciZ0L\u0079Ir)", used).find("czNjciZ0"),
            std::string::npos);
  EXPECT_EQ(scrub(R"(\ \u \u00 \ud83d \x73 \)", used), R"(\ \u \u00 \ud83d \x73 \)");
}

// The output of a stream that is fed `step` bytes at a time; checks that it is always a prefix of
// the whole.
std::string streamed(std::string_view text, std::size_t step, const std::vector<UsedSecret>& used) {
  const std::string whole = scrub(text, used);
  ScrubbedStream stream(used);
  std::string out;
  while (!text.empty()) {
    out += stream.feed(text.substr(0, step));
    text.remove_prefix(std::min(step, text.size()));
    EXPECT_TRUE(whole.starts_with(out)) << out;
  }
  return out + stream.end();
}

AE_TEST("secrets/a stream is scrubbed like the whole text, regardless of how it is split") {
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret("sk-sk-42sk")});
  used.push_back({"PASS", Secret("s3cr&t/\"+")});
  std::vector<std::string> texts{"\\", "a\\\\\\", R"(\ud83d\ude00 \ud83d \u00)",
                                 R"({"k":"a\nb\/c"})"};
  for (const std::string& one : json_encodings("s3cr&t/\"+")) {
    texts.push_back(R"({"k":")" + one + R"(","l":"sk-sk-42sk\n\u0073k"})");
    texts.push_back(fmt::format("{0}{0}\\{1}", one, one.substr(0, one.size() - 1)));
  }
  for (const char* text :
       {"sk-sk-42sk", "a sk-sk-sk-42sk b", "sk-sk-42sk-sk-42sk", "sk-sk-42s", "x sk-sk-4",
        "no secret", "got s3cr&t/\"+ and s3cr%26t%2F%22%2B, 7333637226742f222b",
        "s3cr&t/s3cr&t/\"+", "", "Basic bWU6czNjciZ0LyIr and sk-sk-42sks3cr&t/\"+sk-sk-42sk"}) {
    texts.emplace_back(text);
  }
  for (const std::string& text : texts) {
    for (const std::size_t step :
         {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 10U, 11U, 12U, 13U, 17U, 22U, 31U, 40U}) {
      EXPECT_EQ(streamed(text, step, used), scrub(text, used)) << text << " in pieces of " << step;
    }
  }
}

AE_TEST("secrets/a stream holds back only bytes that may begin a value") {
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret("hunter22")});
  ScrubbedStream stream(used);
  EXPECT_EQ(stream.feed("a quick fox"), "a quick fox");
  EXPECT_EQ(stream.feed(" and a hunt"), " and a ");
  EXPECT_EQ(stream.feed(" of it"), "hunt of it");
  EXPECT_EQ(stream.feed(" hunter2"), " ");
  EXPECT_EQ(stream.feed("2!"), "[secret KEY]!");
  EXPECT_EQ(stream.feed(R"(a \u0075nd \)"), R"(a \u0075nd )");
  EXPECT_EQ(stream.feed("n"), R"(\n)");
  EXPECT_EQ(stream.feed(R"( \u0068unt)"), " ");
  EXPECT_EQ(stream.feed(R"( \\u007)"), R"(\u0068unt )");
  EXPECT_EQ(stream.feed("1"), R"(\\u0071)");
  EXPECT_EQ(stream.feed("ä hun"), "ä ");
  EXPECT_EQ(stream.end(), "hun");
  ScrubbedStream nothing(std::vector<UsedSecret>{});
  EXPECT_EQ(nothing.feed("hunt"), "hunt");
}

AE_TEST("secrets/of two secrets with one value the first name is shown, in any order") {
  std::vector<UsedSecret> used;
  used.push_back({"KEY_B", Secret("hunter22")});
  used.push_back({"KEY_A", Secret("hunter22")});
  EXPECT_EQ(scrub("a hunter22 b", used), "a [secret KEY_A] b");
  std::swap(used[0], used[1]);
  EXPECT_EQ(scrub("a hunter22 b", used), "a [secret KEY_A] b");
}

AE_TEST("secrets/endless repetitions of a value are held back up to a limit") {
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret("abab")});
  ScrubbedStream stream(used);
  std::string out;
  for (int i = 0; i < 10'000; ++i) out += stream.feed("ab");
  EXPECT_FALSE(out.empty());
  out += stream.end();
  EXPECT_EQ(out.find("abab"), std::string::npos);
}

AE_TEST("secrets/a value with backslashes and line breaks is scrubbed in plain text and in JSON") {
  const std::string value = "a\\b\n\"c\\";
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret(value)});
  EXPECT_EQ(scrub(fmt::format("-{}-", value), used).find("[secret KEY]"), 1u);
  std::string json = json_escaped(value);
  for (int depth = 1; depth < 5; ++depth) {
    const std::string clean = scrub(fmt::format("\"{}\"", json), used);
    EXPECT_EQ(clean.find("[secret KEY]"), 1u) << clean;
    EXPECT_TRUE(parse_json(clean)) << clean;
    json = json_escaped(json);
  }
  EXPECT_EQ(scrub(R"("\u0061\u005cb\u000A\u0022c\u005c")", used).find("[secret KEY]"), 1u);
}

AE_TEST("secrets/scrub_tail removes the end of a secret at the start of the text") {
  std::vector<UsedSecret> used;
  used.push_back({"KEY", Secret("hunter22")});
  EXPECT_EQ(scrub_tail("ter22 failed, hunter22", used), " failed, [secret KEY]");
  EXPECT_EQ(scrub_tail("2 failed", used), " failed");
  EXPECT_EQ(scrub_tail("plain", used), "plain");
}

}  // namespace
}  // namespace ae::tools
