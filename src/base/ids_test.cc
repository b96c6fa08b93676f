#include "base/ids.h"

#include <set>

#include "base/hash.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae {
namespace {

// The expected texts in this file were computed with Python's hashlib from SPEC §3.
const JobId kJob("job-1");
const StepId kStep("baeb6f1c8b06de2e");

AE_TEST("base/ids/a step id is derived from job, decision, path and type") {
  const DecisionId decision("f6ff765f4cb0680d");
  EXPECT_EQ(step_id(kJob, decision, "0/0", "tool"), kStep);
  EXPECT_NE(step_id(kJob, decision, "0/0", "llm"), kStep);
  EXPECT_NE(step_id(kJob, decision, "0/00", "tool"), kStep);
  EXPECT_NE(step_id(JobId("job-2"), decision, "0/0", "tool"), kStep);
}

AE_TEST("base/ids/idempotency key and invocation id are derived from the call") {
  const IdempotencyKey key =
      idempotency_key(kJob, kStep, "pay", "{\"amount\":5,\"to\":\"\u00e9\"}", "");
  EXPECT_EQ(key.text, "bff8b8eb1cb8390329aa573f61aefe2145bf4e1016da030dead99717e22127d8");
  EXPECT_EQ(invocation_id(kJob, kStep, key).text, "fc5969e9e680a32f");
}

AE_TEST(
    "base/ids/a blind is prepended to hashed data and appended to the parts of an idempotency "
    "key") {
  const std::string blind = "00112233445566778899aabbccddeeff";
  EXPECT_EQ(blinded_hash("", "{}"), to_hex(sha256("{}")));
  EXPECT_EQ(blinded_hash(blind, "{}"), to_hex(sha256("aetheris.blind.v1" + blind + "{}")));
  const std::string nul(1, '\0');
  EXPECT_EQ(idempotency_key(kJob, kStep, "pay", "{}", blind).text,
            to_hex(sha256(kJob.text + nul + kStep.text + nul + "pay" + nul + "{}" + nul + blind)));
}

AE_TEST("base/ids/an external key names job, step and chosen arguments, but no attempt") {
  EXPECT_EQ(external_key(kJob, kStep).text, "aetheris:job-1:baeb6f1c8b06de2e:0");
  EXPECT_EQ(chosen_external_key(kJob, kStep, IdempotencyKey("0123456789abcdef01")).text,
            "aetheris:job-1:baeb6f1c8b06de2e:0123456789abcdef");
}

AE_TEST("base/ids/an external key of schema 1 names the attempt, or 0 without one") {
  EXPECT_EQ(attempt_external_key(kJob, kStep, AttemptId("att")).text,
            "aetheris:job-1:baeb6f1c8b06de2e:att");
  EXPECT_EQ(attempt_external_key(kJob, kStep, AttemptId()).text,
            "aetheris:job-1:baeb6f1c8b06de2e:0");
}

AE_TEST("base/ids/a child job id is a UUIDv8 derived from parent and step") {
  EXPECT_EQ(child_job_id(kJob, kStep).text, "899eb88f-5f95-8985-94b3-3cd7b64f28ea");
}

AE_TEST("base/ids/a job id has 1 to 64 characters of a restricted alphabet") {
  EXPECT_EQ(job_id_from_text("a").value().text, "a");
  EXPECT_EQ(job_id_from_text("Az09._:-").value().text, "Az09._:-");
  EXPECT_TRUE(job_id_from_text(std::string(64, 'x')));
  EXPECT_TRUE(job_id_from_text("...") && job_id_from_text(".a"));
  for (const std::string& invalid :
       {std::string(), std::string(65, 'x'), std::string("a/b"), std::string("a b"),
        std::string("\u00e9"), std::string("a\0b", 3), std::string("a\n"), std::string("."),
        std::string("..")}) {
    ASSERT_FALSE(job_id_from_text(invalid)) << invalid;
    EXPECT_EQ(job_id_from_text(invalid).error().code, Code::input_invalid);
  }
}

AE_TEST("base/ids/a UUIDv7 contains its time and 74 random bits") {
  const Uuid uuid = uuid_v7(0x0123456789AB, ~std::uint64_t{0}, ~std::uint64_t{0});
  EXPECT_EQ(to_text(uuid), "01234567-89ab-7fff-bfff-ffffffffffff");
  EXPECT_EQ(to_text(uuid_v7(0, 0, 0)), "00000000-0000-7000-8000-000000000000");
  EXPECT_LT(uuid_v7(1, ~std::uint64_t{0}, 0), uuid_v7(2, 0, 0));
}

AE_TEST("base/ids/ids of one commit increment from a base id") {
  const Uuid base = uuid_v7(5, 6, 7);
  EXPECT_EQ(uuid_plus(base, 0), base);
  EXPECT_EQ(to_text(uuid_plus(base, 1)), "00000000-0005-7006-8000-000000000008");
  EXPECT_EQ(uuid_plus(uuid_plus(base, 3), 4), uuid_plus(base, 7));
  // Incrementing never changes version, variant or time.
  EXPECT_EQ(to_text(uuid_plus(uuid_v7(5, 6, ~std::uint64_t{0}), 1)),
            "00000000-0005-7006-8000-000000000000");
  std::set<Uuid> ids;
  for (std::uint64_t n = 0; n < 1000; ++n) ids.insert(uuid_plus(base, n));
  EXPECT_EQ(ids.size(), 1000u);
}

AE_TEST("base/ids/only the canonical form of a UUID is parsed") {
  const std::string text = "01234567-89ab-7fff-bfff-0123456789ab";
  ASSERT_TRUE(uuid_from_text(text));
  EXPECT_EQ(to_text(*uuid_from_text(text)), text);
  EXPECT_FALSE(uuid_from_text("01234567-89AB-7fff-bfff-0123456789ab"));
  EXPECT_FALSE(uuid_from_text("0123456789ab7fffbfff0123456789ab"));
  EXPECT_FALSE(uuid_from_text("{" + text + "}"));
  EXPECT_FALSE(uuid_from_text(text.substr(1)));
  EXPECT_FALSE(uuid_from_text("0123456-789ab-7fff-bfff-0123456789ab"));
  EXPECT_FALSE(uuid_from_text(""));
}

}  // namespace
}  // namespace ae
