// Frames: numbers, acknowledgements, what is kept for a resume.
#include "routines/remote/frames.h"

#include "testing/test.h"

namespace ae::routines {
namespace {

using enum Frames::Arrival;

AE_TEST("frames/frames of the other side are processed once and in order") {
  Frames frames(1);
  EXPECT_EQ(frames.on_frame(1, 0), repeated);
  EXPECT_EQ(frames.on_frame(2, 0), next);
  EXPECT_TRUE(frames.owes_ack());
  EXPECT_EQ(frames.on_frame(2, 0), repeated);
  EXPECT_EQ(frames.on_frame(4, 0), broken);
  EXPECT_EQ(frames.on_frame(3, 1), broken) << "it acknowledges what was never sent";
  EXPECT_EQ(frames.received(), 2u);
}

AE_TEST("frames/a frame is kept, unchanged, until it is acknowledged") {
  Frames frames(1);
  EXPECT_EQ(frames.make("1"), R"({"frame":1,"ack":1,"messages":[1]})");
  frames.on_frame(2, 0);
  EXPECT_EQ(frames.make(""), R"({"frame":2,"ack":2,"messages":[]})");
  EXPECT_FALSE(frames.owes_ack());
  ASSERT_EQ(frames.kept().size(), 2u);
  EXPECT_EQ(frames.kept().front(), R"({"frame":1,"ack":1,"messages":[1]})");
  EXPECT_TRUE(frames.on_ack(1));
  EXPECT_EQ(frames.kept().size(), 1u);
  EXPECT_TRUE(frames.on_ack(0)) << "an older acknowledgement, of a frame that is sent again";
  EXPECT_EQ(frames.on_frame(3, 2), next);
  EXPECT_EQ(frames.kept_bytes(), 0u);
  EXPECT_FALSE(frames.on_ack(3));
}

}  // namespace
}  // namespace ae::routines
