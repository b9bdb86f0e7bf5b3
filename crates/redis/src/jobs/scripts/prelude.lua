-- What the scripts begin with that change jobs. Each is a named call of a sender that has one call under way at a time.
-- KEYS: due claimed running dead state payload last. ARGV: the call's name and those that may precede it, channel, and what each
-- script says.
--
-- A job has its payload in `payload`, and is in exactly one of four sorted sets:
--   due      waits; the score is its due time
--   claimed  waits, but a worker has it on its wheel; the score is the end of that worker's lease
--   running  was delivered; the score is the end of the lease
--   dead     ran out of attempts, or was buried; the score is when
-- `state` holds "token attempts due" for each job that is claimed or was ever started, with the token "-" while nobody holds it, and
-- after that why a dead job could not be delivered.
-- `last` holds the sender's last call: its name and its reply. A repeated call answers as the first did. One that finds another call
-- than those that may precede it is refused: it comes late, behind its successor, or its sender is a copy of another.
local due, claimed, running, dead, state, payload, last = unpack(KEYS)
local call, match = redis.call, string.match
local name, before = match(ARGV[1], '^(%S+)(.*)$')
local channel = ARGV[2]

-- Redis' clock, in microseconds.
local function clock()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local now = clock()

-- Lua writes 14 digits of a number unless it is told to write all. A score that is none of ours may be anything.
local function exact(value)
  return string.format('%.0f', math.max(0, math.min(value, 9e15)))
end

-- Who holds a job, its attempts and its due time. Of one whose state is lost or damaged: nobody, none and now.
local function parse(stored)
  local owner, attempts, at = match(stored or '', '^(%S+) (%d+) (%d+)')
  if not owner or #attempts > 9 or #at > 16 then return '-', '0', exact(now) end
  return owner, attempts, at
end

local function read(id)
  return parse(call('HGET', state, id))
end

local function write(id, token, attempts, at)
  call('HSET', state, id, token .. ' ' .. attempts .. ' ' .. at)
end

-- A job is put in its new place before it leaves the old one: where a command fails midway, none is nowhere.
local function wait(from, id, attempts, at)
  call('ZADD', due, at, id)
  if from ~= due then call('ZREM', from, id) end
  if attempts == '0' then
    call('HDEL', state, id)
  else
    write(id, '-', attempts, at)
  end
end

local function bury(from, id, attempts, at, why)
  call('ZADD', dead, exact(now), id)
  call('ZREM', from, id)
  write(id, '-', attempts, why and at .. ' ' .. why or at)
end

-- Counts an attempt to deliver a job that failed for its payload. It waits for a second, so that a worker which can may take it.
local function fail(from, id, attempts, at, most, why)
  attempts = exact(attempts + 1)
  if tonumber(attempts) >= most then
    bury(from, id, attempts, at, why)
  else
    wait(from, id, attempts, exact(now + 1000000))
  end
end

local past, last_reply = match(call('GET', last) or '', '^(%S+) (.*)$')
local is_repeated = past == name
local is_late = past and not is_repeated and not string.find(before .. ' ', ' ' .. past .. ' ', 1, true)

local function refuse()
  return redis.error_reply('STALE another call of this sender was answered already')
end

local function remember(reply)
  call('SET', last, name .. ' ' .. reply, 'PX', 3600000)
end

