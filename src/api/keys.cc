// API keys: create, list (without secrets) and revoke them. They are stored in the audit log
// (store/registry.h).
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "api/api_context.h"
#include "api/authenticator.h"
#include "api/operations.h"
#include "api/request_context.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

constexpr Duration kExpiresLeast = std::chrono::seconds(1);
constexpr std::size_t kKeysMax = 10'000;  // per store, with revoked keys: bounds lists and memory

Value key_json(const store::ApiKey& key, Instant now) {
  std::vector<Member> members{{"created_at", to_text(key.created_at)},
                              {"created_by", key.created_by},
                              {"id", key.id},
                              {"live", key.is_live(now)},
                              {"name", key.name},
                              {"role", key.role}};
  if (key.expires_at) members.emplace_back(field::expires_at, to_text(*key.expires_at));
  if (key.revoked_at) {
    members.emplace_back("revoked_at", to_text(*key.revoked_at));
    members.emplace_back("revoked_by", key.revoked_by);
  }
  return Value::object(std::move(members));
}

// A display name: one line.
Result<std::string> name_of(const Fields& fields) {
  AE_ASSIGN(std::string name, fields.text("name"));
  const bool fits =
      name.size() <= store::Registry::kNameMax && std::ranges::none_of(name, [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
      });
  if (!fits) return fail(Code::input_invalid, "\"name\" must be one line of at most 64 bytes");
  return name;
}

struct KeyParams {
  Role role;
  std::string name;
  std::optional<Duration> expires;
};

Result<KeyParams> parse_key_params(const Fields& fields) {
  KeyParams params{};
  AE_ASSIGN(params.name, name_of(fields));
  AE_ASSIGN(const std::string role, fields.text("role"));
  const auto known = role_from_text(role);
  if (!known) {
    const std::string given = role.empty() ? "" : fmt::format(", not \"{}\"", role.substr(0, 64));
    return fail(Code::input_invalid, "\"role\" is {}{}", roles_text(all_roles()), given);
  }
  params.role = *known;
  AE_ASSIGN(const std::string expires, fields.text("expires"));
  if (!expires.empty()) {
    auto duration = duration_from_text(expires);
    if (!duration) return std::unexpected(std::move(duration).error().with_context("\"expires\""));
    if (*duration < kExpiresLeast)
      return fail(Code::input_invalid, "\"expires\" must be at least 1s");
    params.expires = *duration;
  }
  return params;
}

std::string random_hex(async::RandomSource& random, std::size_t digits) {
  std::string hex;
  while (hex.size() < digits) {
    std::string bytes;
    for (std::uint64_t word = random.next(); bytes.size() < sizeof word; word >>= 8) {
      bytes += static_cast<char>(word & 0xff);
    }
    append_hex(bytes, hex);
  }
  hex.resize(digits);
  return hex;
}

}  // namespace

void operations::keys(ApiContext& api, RequestPtr ctx) {
  api.registry.refresh_if_older(Duration(0), [&api, ctx](Status read) {
    if (!read) return ctx->refuse(read.error());
    std::vector<const store::ApiKey*> keys;
    for (const auto& [id, key] : api.registry.registry().keys()) keys.push_back(&key);
    std::ranges::sort(keys, {}, [](const store::ApiKey* key) {
      return std::pair(key->created_at, std::string_view(key->id));
    });
    std::vector<Value> list;
    list.reserve(keys.size());
    for (const store::ApiKey* key : keys) list.push_back(key_json(*key, api.store.now()));
    ctx->answer(200, Value::object({{"keys", Value::array(std::move(list))}}));
  });
}

void operations::create_key(ApiContext& api, RequestPtr ctx) {
  const auto params = parse_key_params(ctx->fields);
  if (!params) return ctx->refuse(params.error());
  AE_CHECK(api.options.random_source != nullptr, "nothing to draw a key from");
  api.registry.refresh_if_older(Duration(0), [&api, alive = api.alive.watch(), ctx,
                                              params = *params](Status read) {
    if (!read) return ctx->refuse(read.error());
    if (api.registry.registry().keys().size() >= kKeysMax) {
      return ctx->refuse({Code::input_invalid,
                          fmt::format("a store has at most {} keys, revoked ones too", kKeysMax)});
    }
    KeyText text;
    do {
      text.id = random_hex(*api.options.random_source, 12);
    } while (api.registry.registry().key(text.id) != nullptr);
    text.secret = random_hex(*api.options.random_source, 64);
    store::ApiKey key{.id = text.id,
                      .secret_hash = hash_of_secret(text.secret),
                      .role = std::string(to_text(params.role)),
                      .name = params.name,
                      .created_by = ctx->request.by,
                      .revoked_by = {},
                      .created_at = api.store.now()};
    if (params.expires) key.expires_at = std::min(key.created_at + *params.expires, kInstantMax);
    api.store.append_audit_entry(
        store::key_created(key), [&api, alive, ctx, key, text](Result<void> written) {
          if (!written && written.error().code == Code::unknown_outcome) {
            return ctx->refuse(
                {Code::unknown_outcome,
                 fmt::format("the outcome is unknown: key {} may exist; revoke it if it is listed",
                             text.id),
                 Action{.act = act::kKeys}});
          }
          if (!written) return ctx->refuse(written.error());
          if (!alive) return;
          const Value body = key_json(key, api.store.now()).with("key", to_text(text));
          // From here on this process requires keys.
          api.registry.refresh_if_older(Duration(0), [ctx, body](Status) {
            ctx->answer(201, body, target({"api", "keys", std::string(body.text("id"))}, {}));
          });
        });
  });
}

// Revoking is idempotent.
void operations::revoke_key(ApiContext& api, RequestPtr ctx) {
  api.registry.refresh_if_older(Duration(0), [&api, alive = api.alive.watch(), ctx](Status read) {
    if (!read) return ctx->refuse(read.error());
    const store::ApiKey* const key = api.registry.registry().key(ctx->id);
    if (key == nullptr) {
      return ctx->refuse({Code::not_found,
                          fmt::format("there is no key with the id \"{}\"", ctx->id.substr(0, 64)),
                          Action{.act = act::kKeys}});
    }
    const auto answer = [&api, ctx] {
      ctx->answer(200, key_json(*api.registry.registry().key(ctx->id), api.store.now()));
    };
    if (key->revoked_at) return answer();
    api.store.append_audit_entry(store::key_revoked(key->id, api.store.now(), ctx->request.by),
                                 [&api, alive, ctx, answer](Result<void> written) {
                                   if (!written) return ctx->refuse(written.error());
                                   if (!alive) return;
                                   api.registry.refresh_if_older(
                                       Duration(0), [ctx, answer](Status seen) {
                                         if (!seen) return ctx->refuse(seen.error());
                                         answer();
                                       });
                                 });
  });
}

}  // namespace ae::api
