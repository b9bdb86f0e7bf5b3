#!lua
-- Schedules a batch of jobs of one partition.
-- KEYS: due claimed running dead state payload lane
-- ARGV: seq, channel, then for each job: id, "in" or "at", microseconds, payload.
-- Returns a digit for each job: 1 where it was scheduled, 0 where its id was known already.
local due, payload, lane = KEYS[1], KEYS[6], KEYS[7]
local seq, channel = ARGV[1], ARGV[2]
local call = redis.call

-- A repeated batch answers as the first did; one that comes late, behind its successor, is refused.
local last = call('GET', lane)
if last then
  local past, answers = string.match(last, '^(%d+) (.*)$')
  if past == seq then return answers end
  if tonumber(past) > tonumber(seq) then
    return redis.error_reply('STALE a later batch of this lane was answered already')
  end
end

local time = call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local before = tonumber(call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]) or math.huge
local earliest = before
local answers, scores = {}, {}
for at = 3, #ARGV, 4 do
  local id = ARGV[at]
  if call('HSETNX', payload, id, ARGV[at + 3]) == 0 then
    answers[#answers + 1] = '0'
  else
    local micros = tonumber(ARGV[at + 2])
    if ARGV[at + 1] == 'in' then micros = now + micros end
    micros = math.min(micros, 9e15)
    scores[#scores + 1] = string.format('%.0f', micros)
    scores[#scores + 1] = id
    earliest = math.min(earliest, micros)
    answers[#answers + 1] = '1'
  end
end
if scores[1] then call('ZADD', due, unpack(scores)) end
local reply = table.concat(answers)
call('SET', lane, seq .. ' ' .. reply, 'PX', 3600000)
-- Workers look again when there is another first one.
if earliest < before then call('PUBLISH', channel, '') end
return reply
